"""Epilogues: their words and sizes, the kernels made of them, and that nothing is in these but what was asked."""

from __future__ import annotations

import ctypes
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import native
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tileseek.codegen import CompilePool, fusion, generate, launch_plan
from tileseek.codegen.fusion import activation_function
from tileseek.measure.bench import over_plain
from tileseek.measure.results import Result
from tileseek.space import (
    ACTIVATIONS,
    EPILOGUE_WORDS,
    H200,
    BadInput,
    Epilogue,
    Problem,
    Schedule,
    sample,
    shared_memory,
    unsupported,
    violations,
)

FULL = "alpha+bias+aux+silu+gated+residual+beta"
LARGE = Problem(4096, 4096, 4096)
COOPERATIVE = Schedule.parse("coop2_128x256x64_s3_w0_c2x1_pall_rm8_reg40-232_tma32x2")

COMBINATIONS = [
    "bias+gelu",
    "bias_m+silu",
    "alpha+silu",
    "aux+gelu",
    "silu+residual",
    "alpha+gelu_tanh+residual+beta",
    "alpha+bias+aux+gelu",
    "gated",
    "silu+gated",
    "bias+gelu+gated+residual",
    "aux+relu+gated",
    FULL,
]


@st.composite
def words(draw: st.DrawFn) -> list[str]:
    """Words in their order, at most one of each kind, that make sense together."""
    chosen = []
    for place in EPILOGUE_WORDS:
        if draw(st.booleans()):
            chosen.append(place if isinstance(place, str) else draw(st.sampled_from(place)))
    if "residual" not in chosen:
        chosen = [word for word in chosen if word != "beta"]
    if chosen and chosen[-1] == "aux":
        chosen.pop()
    return chosen


@given(words())
def test_words_read_back_in_their_order_and_in_no_other(chosen: list[str]) -> None:
    text = "+".join(chosen) or "none"
    assert str(Epilogue.parse(text)) == text
    assert Problem.from_json(Problem(64, 64, 64, epilogue=text).to_json()).epilogue == text
    if len(chosen) > 1:
        for wrong in ("+".join(reversed(chosen)), text + "+" + chosen[0], text + "+none", text + "+"):
            with pytest.raises(BadInput, match="in this order any of scale"):
                Epilogue.parse(wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("beta", "beta after residual"),
        ("bias+aux", "aux before an activation"),
        ("bias+bias_m", "in this order"),
        ("relu+gelu", "in this order"),
    ],
)
def test_words_without_meaning_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Problem(64, 64, 64, epilogue=text)


def test_a_gate_halves_the_columns_of_d() -> None:
    problem = replace(LARGE, epilogue="silu+gated")
    assert (problem.d_columns, problem.flops) == (2048, LARGE.flops)
    operands = 2 * 4096 * 4096 * 2
    assert problem.bytes == operands + 4096 * 2048 * 2
    assert replace(problem, epilogue=FULL).bytes == operands + 4096 * (2048 + 2048 + 4096) * 2
    with pytest.raises(BadInput, match="n is 63: valid is an even number"):
        replace(problem, n=63)
    for narrow in (replace(problem, n=24), replace(problem, n=24, d_align=16)):
        assert list(unsupported(narrow, H200)) == [
            "rows of D lie at multiples of 8 bytes: valid are multiples of 16 with the epilogue silu+gated"
        ]


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("epilogue", ["silu+gated", FULL])
@pytest.mark.parametrize("m", [2, 4096])
def test_what_is_sampled_for_a_gate_is_valid(epilogue: str, layout: str, m: int) -> None:
    problem = Problem(m, 4096, 4096, layout=layout if m > 2 else "n" + layout[1], epilogue=epilogue)
    rng = random.Random(problem.key)
    for _ in range(100):
        schedule = sample(problem, H200, rng)
        assert violations(problem, schedule, H200) == [], schedule.name
        assert schedule.tile_n % (16 if problem.b_major == "k" else 128) == 0


@pytest.mark.parametrize(
    ("changes", "layout", "reason"),
    [
        ({"swap_ab": True}, "nt", "gated epilogue with swap_ab"),
        ({"tile_n": 200}, "nt", "tile_n 200 of 2 halves sliced over 2 CTAs: valid are multiples of 32"),
        ({"tile_n": 192}, "nn", "valid are multiples of 128"),
        ({"tile_n": 32}, "nt", "epilogue_n 32 for tile_n 32 in two halves"),
        ({"store": "direct", "epilogue_n": 64}, "nt", "direct stores"),
        (
            {"cluster_m": 1, "split_k": 2, "evict_first": "b", "producer_regs": 24, "consumer_regs": 240},
            "nt",
            "24 registers for a producer with evict_first",
        ),
    ],
)
def test_each_rule_of_a_gate(changes: dict[str, object], layout: str, reason: str) -> None:
    problem = replace(LARGE, epilogue="silu+gated", layout=layout)
    assert violations(problem, COOPERATIVE, H200) == []
    found = violations(problem, replace(COOPERATIVE, **changes), H200)  # type: ignore[arg-type]
    assert any(reason in words for words in found), found


def test_a_second_output_takes_no_shared_memory() -> None:
    rng = random.Random(4)
    for epilogue in ("bias+aux+gelu+residual", "aux+silu+gated"):
        kept = replace(LARGE, epilogue=epilogue)
        alone = replace(LARGE, epilogue=epilogue.replace("aux+", ""))
        for _ in range(200):
            schedule = sample(alone, H200, rng)
            assert shared_memory(kept, schedule) == shared_memory(alone, schedule)


def test_a_plan_has_maps_of_both_halves() -> None:
    problem = Problem(512, 1280, 1024, epilogue=FULL)
    plan = launch_plan(problem, replace(COOPERATIVE, residual_buffers=1))
    assert plan.needed == ("a", "b", "d", "c", "aux", "bias", "alpha", "beta")
    maps = [(spec.operand, spec.extents, spec.pitches_bytes[0], spec.offset_bytes) for spec in plan.tensor_maps]
    assert maps == [
        ("a", (1024, 512), 2048, 0),
        ("b", (1024, 1280), 2048, 0),
        ("d", (640, 512), 1280, 0),
        ("c", (640, 512), 1280, 0),
        ("aux", (640, 512), 2560, 0),
        ("aux", (640, 512), 2560, 1280),
    ]
    assert plan.tensor_maps[1].box == (64, 256 // 2 // 2), "half a tile, of which a peer loads the other half"


@pytest.mark.parametrize("epilogue", ["none", *COMBINATIONS])
def test_the_source_has_only_what_is_asked(epilogue: str) -> None:
    problem = replace(LARGE, epilogue=epilogue)
    text = generate(problem, COOPERATIVE).text
    fused = problem.fused
    for word, asked in (
        ("float alpha", fused.alpha),
        ("float beta", fused.beta),
        ("add_residual", fused.residual),
        ("load_bias", bool(fused.bias)),
        ("activation(d[j])", bool(fused.activation)),
        ("activate<", fused.activated == "before"),
        ("stage_activated", fused.activated == "stored"),
        ("gate<", fused.gated),
        ("n / 2", fused.gated),
        ("map_aux", fused.aux),
        ("map_aux_up", fused.aux and fused.gated),
        ("__syncwarp();  // ends a basic block", fused.activated in ("before", "stored")),
    ):
        assert (word in text) == asked, word
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("buffers", [1, 2, 4])
@pytest.mark.parametrize("epilogue", ["bias+gelu", "aux+gelu", FULL])
def test_a_chunk_is_waited_for_just_before_it_is_written_again(epilogue: str, buffers: int) -> None:
    text = generate(replace(LARGE, epilogue=epilogue), replace(COOPERATIVE, epilogue_buffers=buffers)).text
    end = text[text.rindex("keep_bias(" if "bias" in epilogue else "wgmma_wait<0>") :]
    lines = [line.strip() for line in end.splitlines()]
    stages = [i for i, line in enumerate(lines) if line.startswith(("stage_piece<", "stage_activated<"))]
    stores = [i for i, line in enumerate(lines) if line.startswith("if (thread == 0) tma_store(")]
    waits = [i for i, line in enumerate(lines) if "tma_store_wait<BUFFERS - 1>" in line]
    assert len(stages) == len(stores) > buffers
    assert waits == [i - 2 for i in stages[buffers:]], "a wait, a barrier, the chunk"
    chunks = [lines[i].split(", ")[-2] for i in stages]
    assert len(set(chunks)) == buffers
    for stage, store, chunk in zip(stages, stores, chunks, strict=True):
        assert stage < store < ([*stages, len(lines)])[stages.index(stage) + 1]
        assert lines[store].endswith(f"{chunk});")


def test_large_tiles_compile_without_spills() -> None:
    """The compiler once worked out a tile's activations all at once, and spilled in one kernel of six."""
    rng = random.Random(1)
    asked = []
    for epilogue in COMBINATIONS:
        problem = replace(LARGE, epilogue=epilogue)
        drawn = (sample(problem, H200, rng) for _ in range(4000))
        asked += [(problem, next(schedule for schedule in drawn if schedule.accumulators >= 144)) for _ in range(2)]
    with CompilePool(2) as pool:
        kernels = pool.compile_many(asked)
    rejected = {(p.epilogue, s.name): k.reason for (p, s), k in zip(asked, kernels, strict=True) if k.reason}
    assert len(rejected) <= 1, rejected


HOST = """
#include <cmath>
#include <cstring>
#include <type_traits>
#define __device__
#define __forceinline__ inline
typedef unsigned int u32;
struct float2 { float x, y; };
inline float __uint_as_float(u32 bits) { float value; std::memcpy(&value, &bits, 4); return value; }
template <class T> inline auto load_pair(const T* source) {
  typename std::conditional<sizeof(T) == 4, float2, u32>::type two;
  std::memcpy(&two, source, 2 * sizeof(T));
  return two;
}
"""

RUN = """
extern "C" void run(float* d, const ELEMENT* c, int pitch, int row, int column, int m, int n) {
  for (int thread = 0; thread < 128; ++thread)
    add_residual<16, 32>(*(float (*)[24])(d + thread * 24), c, pitch, row, column, m, n, threadBETA);
}
"""


@pytest.mark.parametrize("epilogue", ["residual", "residual+beta", "relu+residual", "relu+residual+beta"])
@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
def test_a_residual_is_added_to_what_is_activated(tmp_path: Path, epilogue: str, out_dtype: str) -> None:
    """The generated function on the CPU: the second piece of a block, whose last rows and columns lie outside D."""
    problem = Problem(100, 120, 64, epilogue=epilogue, out_dtype=out_dtype)
    text = "\n".join(fusion.functions(problem, Schedule.parse("coop1_64x64x64_s2_w0_c1x1_pall_rm1_reg0-0_tma16x1")))
    text = re.sub(r"// Volatile.*?\n\}\n", "", text, flags=re.DOTALL)
    run = RUN.replace("ELEMENT", "float" if out_dtype == "fp32" else "unsigned short")
    run = run.replace("BETA", ", 0.5f" * problem.fused.beta)
    built = native.library(HOST + text + run, tmp_path, "residual")

    rng = np.random.default_rng(0)
    sums, residual = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((64, 32), (100, 120)))
    # What each thread holds: d[4 * block + 2 * half + e] is row 16 w + lane / 4 + 8 * half.
    thread, block, half, e = np.ix_(range(128), range(4), range(2), range(2))
    rows = thread // 32 * 16 + thread % 32 // 4 + 8 * half + 0 * block + 0 * e
    columns = 8 * block + thread % 4 * 2 + e + 0 * half + 0 * thread
    held = np.full((128, 24), 99, np.float32)
    held[:, 8:] = sums[rows, columns].reshape(128, 16)
    memory = residual if out_dtype == "fp32" else (residual.view(np.uint32) >> 16).astype(np.uint16)
    row, column = 64, 80
    built.run(held.ctypes.data_as(ctypes.c_void_p), memory.ctypes.data_as(ctypes.c_void_p), 120, row, column, 100, 120)

    inside = (row + rows < 100) & (column + 16 + columns < 120)
    added = residual[np.minimum(row + rows, 99), np.minimum(column + 16 + columns, 119)]
    activated = np.maximum(sums, 0) if problem.fused.activation else sums
    expected = activated[rows, columns] + added * (0.5 if problem.fused.beta else 1)
    found = held[:, 8:].reshape(inside.shape)
    assert inside.any() and not inside.all()
    assert (found[inside] == expected[inside]).all() and (held[:, :8] == 99).all()


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "relu"])
def test_activations_are_exact_enough(name: str) -> None:
    """Off by at most 2^-13 of the value plus 2^-18: a fraction of rounding to fp16. The formula is read off the
    source and evaluated in float32."""
    x = np.linspace(-20, 20, 400_001, dtype=np.float32)
    body = re.search(r"float activation\(float x\) \{(.*)\}", activation_function(name, "fp16"), re.DOTALL)
    assert body
    *steps, value = [line.strip() for line in body[1].split(";") if line.strip()]

    def logistic(of: np.ndarray, t: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return of * (np.float32(1) / (np.float32(1) + np.exp2(t)))

    scope = {"x": x, "logistic": logistic}

    def evaluate(text: str) -> np.ndarray:
        literal = re.sub(r"(\d+\.\d+(?:e[-+]\d+)?)f", r"float32(\1)", text)
        return np.asarray(eval(literal, {"float32": np.float32}, scope))

    for step in steps:
        variable, _, expression = step.removeprefix("const float ").partition(" = ")
        scope[variable] = evaluate(expression)
    got = evaluate(value.removeprefix("return ")).astype(float)
    wide = x.astype(float)
    match name:
        case "silu":
            expected = wide / (1 + np.exp(-wide))
        case "gelu":
            expected = wide * 0.5 * np.array([math.erfc(-v / math.sqrt(2)) for v in wide])
        case "gelu_tanh":
            expected = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    error = abs(got - expected)
    assert (error <= 2.0**-13 * abs(expected) + 2.0**-18).all(), error.max()
    assert got[0] == pytest.approx(0, abs=1e-7)
    assert got[-1] == 20


def test_an_epilogue_costs_what_it_adds_in_the_same_rounds() -> None:
    def result(rounds: tuple[int, ...], us: tuple[float, ...], mhz: tuple[float, ...]) -> Result:
        return Result(COOPERATIVE, "correct", rounds=rounds, times_us=us, clocks_mhz=mhz)

    fused = result((0, 1, 3), (110.0, 230.0, 9.0), (1400.0, 1500.0, 1900.0))
    plain = result((0, 1, 2), (100.0, 200.0, 9.0), (1500.0, 1500.0, 1900.0))
    cost = over_plain(fused, plain)
    assert cost
    assert cost["schedule_name"] == COOPERATIVE.name
    assert cost["time"] == pytest.approx((1.1 + 1.15) / 2)
    assert cost["cycles"] == pytest.approx((1.1 * 1400 / 1500 + 1.15) / 2)
    assert cost["ci95"]["time"] == pytest.approx((1.1, 1.15))
    assert over_plain(fused, result((7,), (1.0,), (1500.0,))) is None
