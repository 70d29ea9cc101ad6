"""Rows that TMA does not take: what threads copy lies where TMA would have put it, by the text of kernels compiled for
the CPU; the rules and the kernels of such problems."""

from __future__ import annotations

import ctypes
import random
from dataclasses import replace
from typing import Any, NamedTuple

import native
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tileseek.codegen import CompilePool, copying, generate, launch_plan
from tileseek.measure import check
from tileseek.space import H200, LAYOUTS, Problem, Schedule, nearest, sample, unsupported, violations
from tileseek.space.enumeration import enumerate_schedules

ODD = Problem(500, 501, 503)
SCHEDULE = Schedule.parse("coop2_128x128x64_s4_w0_c1x1_pall_rm8_reg0-0_copy64x2_ld-copy")
SIZES = (2, 4, 8)

HOST = """
#include <algorithm>
#include <cstring>
using std::min; using std::max;
#define __device__
#define __forceinline__ inline
typedef unsigned int u32;
struct uint2 { u32 x, y; };
static unsigned char* memory;
static void store_element(u32 target, unsigned short value) { std::memcpy(memory + target, &value, 2); }
template <int BYTES> void copy_async(u32 target, const void* source, int inside) {
  std::memset(memory + target, 0, BYTES);
  std::memcpy(memory + target, source, inside);
}
"""
COPY = """
extern "C" void copy{size}_{rows}(unsigned char* to, const unsigned short* matrix, long long pitch, int row, int column,
                                  int rows, int columns) {{
  memory = to;
  for (int thread = 0; thread < 128; ++thread)
    copy_slab{size}<{rows}{batch}>(0, matrix, pitch, row, column, rows, columns, thread);
}}"""
STORE = """
extern "C" void store{size}_{rows}_{columns}(const unsigned char* chunk, unsigned short* d, long long pitch, int row,
                                             int column, int rows, int columns) {{
  for (int thread = 0; thread < 128; ++thread)
    store_chunk<{rows}, {columns}>(chunk, d, pitch, row, column, rows, columns, thread);
}}"""
SLABS = (8, 64, 200)
CHUNKS = ((64, 64), (64, 32), (64, 16), (64, 8), (8, 64), (16, 64), (32, 64))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[int, ctypes.CDLL]:
    """For each alignment the functions that copy, of kernels of such problems."""
    folder = tmp_path_factory.mktemp("copying")
    libraries = {}
    for size in SIZES:
        problem = replace(ODD, a_align=size, b_align=size, d_align=size)
        own = [text for text in copying.functions(problem, SCHEDULE) if '"memory"' not in text]
        calls = [
            COPY.format(size=size, rows=rows, batch=f", {copying._batch(rows)}" if size == 2 else "") for rows in SLABS
        ]
        calls += [STORE.format(size=size, rows=rows, columns=columns) for rows, columns in CHUNKS]
        libraries[size] = native.library("\n".join([HOST, *own, *calls]), folder, str(size))
    return libraries


def swizzled(row: int, column: int, width: int) -> int:
    """The element of a chunk or slab with rows of `width` elements, whose 16-byte units are exchanged."""
    return row * width + ((column // 8) ^ (row // (64 // width) % (width // 8))) * 8 + column % 8


class Part(NamedTuple):
    """A part of a matrix whose rows lie at multiples of `size` bytes: from (row, column) on, perhaps beyond its end."""

    size: int
    row: int
    column: int
    rows: int
    columns: int
    padding: int

    @property
    def pitch(self) -> int:
        """Elements from row to row."""
        unit = self.size // 2
        return (-(-self.columns // unit) + self.padding) * unit


def parts(step: int, steps: int, columns: int) -> st.SearchStrategy[Part]:
    """Parts that begin at up to `steps` times `step` columns, of matrices of at most `columns`."""
    return st.builds(
        Part,
        size=st.sampled_from(SIZES),
        row=st.integers(0, 40),
        column=st.integers(0, steps).map(lambda at: step * at),
        rows=st.integers(1, 90),
        columns=st.integers(1, columns),
        padding=st.integers(0, 3),
    )


@settings(max_examples=60, deadline=None)
@given(part=parts(64, 3, 150), slab=st.sampled_from(SLABS))
def test_a_slab_is_what_tma_would_have_written(compiled: dict[int, ctypes.CDLL], part: Part, slab: int) -> None:
    size, row, column, rows, columns, _ = part
    matrix = np.full(rows * part.pitch + 8, 0xBAD, np.uint16)  # what is between rows must not be seen
    inside = matrix[: rows * part.pitch].reshape(rows, part.pitch)[:, :columns]
    inside[:] = np.arange(1, rows * columns + 1).reshape(rows, columns)
    found = np.full(slab * 64, 0xDEAD, np.uint16)
    copy = getattr(compiled[size], f"copy{size}_{slab}")
    copy(pointer(found), pointer(matrix), ctypes.c_longlong(part.pitch), row, column, rows, columns)
    expected = np.zeros(slab * 64, np.uint16)
    for r in range(min(slab, rows - row)):
        for c in range(min(64, columns - column)):
            expected[swizzled(r, c, 64)] = inside[row + r, column + c]
    assert np.array_equal(found, expected)


@settings(max_examples=60, deadline=None)
@given(part=parts(8, 8, 90), chunk=st.sampled_from(CHUNKS))
def test_a_chunk_is_stored_where_d_has_it_and_nowhere_else(
    compiled: dict[int, ctypes.CDLL], part: Part, chunk: tuple[int, int]
) -> None:
    size, row, column, rows, columns, _ = part
    height, width = chunk
    staged = np.zeros(height * width, np.uint16)
    for r in range(height):
        for c in range(width):
            staged[swizzled(r, c, width)] = 1 + r * width + c
    d = np.zeros((rows, part.pitch), np.uint16)
    store = getattr(compiled[size], f"store{size}_{height}_{width}")
    store(pointer(staged), pointer(d), ctypes.c_longlong(part.pitch), row, column, rows, columns)
    expected = np.zeros_like(d)
    values = np.arange(1, height * width + 1).reshape(height, width)
    inside = expected[row : row + height, column : min(columns, column + width)]
    inside[:] = values[: inside.shape[0], : inside.shape[1]]
    assert np.array_equal(d, expected)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(500, 504, 504, "fp8", a_align=8), "rows of A lie at multiples of 8 bytes: valid are multiples of 16"),
        (Problem(500, 501, 512, "fp8", out_dtype="fp32"), "rows of D lie at multiples of 4 bytes"),
        (replace(ODD, k=504, epilogue="aux+relu"), "rows of D lie at multiples of 2 bytes"),
        (replace(ODD, n=512, epilogue="silu+gated"), "rows of B lie at multiples of 2 bytes"),
        (replace(ODD, n=512, epilogue="aux+relu"), ""),
    ],
)
def test_problems_without_kernels(problem: Problem, reason: str) -> None:
    reasons = list(unsupported(problem, H200))
    assert any(reason in words for words in reasons) if reason else not reasons, reasons


def pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize(
    ("problem", "changes", "reason"),
    [
        (ODD, {"load": "tma"}, "load tma of rows at multiples of bytes, of A 2 and B 2: valid is copy"),
        (ODD, {"store": "tma"}, "store tma of rows at multiples of 2 bytes: valid is copy"),
        (ODD, {"store": "direct"}, "store direct of rows at multiples of 2 bytes: valid is copy"),
        (ODD, {"cluster_m": 2}, "cluster 2x1 with the load copy"),
        (ODD, {"evict_first": "a"}, "evict_first a with the load copy"),
        (ODD, {"producer_regs": 40, "consumer_regs": 232}, "registers 40-232"),
        (replace(ODD, overlap="weights"), {"dependent_launch": "weights"}, "valid is wait"),
        (replace(ODD, epilogue="residual"), {"residual_buffers": 1}, "residual_buffers 1 with the load copy"),
        (Problem(500, 501, 504, epilogue="residual"), {"load": "tma", "residual_buffers": 1}, "with the store copy"),
        (Problem(504, 504, 504), {}, "load copy of rows at multiples of bytes, of A 16 and B 16: valid is tma"),
        (
            Problem(504, 504, 504),
            {"load": "tma"},
            "store copy of rows at multiples of 16 bytes: valid is tma or direct",
        ),
    ],
)
def test_each_rule_names_what_it_refuses(problem: Problem, changes: dict[str, Any], reason: str) -> None:
    assert not violations(ODD, SCHEDULE, H200)
    reasons = violations(problem, replace(SCHEDULE, **changes), H200)
    assert any(reason in words for words in reasons), reasons


UNALIGNED = st.builds(
    Problem,
    m=st.integers(1, 3000),
    n=st.integers(1, 3000),
    k=st.integers(1, 3000),
    layout=st.sampled_from(LAYOUTS),
    batch=st.sampled_from([1, 3]),
    epilogue=st.sampled_from(["none", "bias+relu+residual", "scale_m+alpha+silu+residual+beta"]),
    overlap=st.sampled_from(["none", "weights"]),
    **dict.fromkeys(("a_align", "b_align", "d_align"), st.sampled_from([0, 2, 4, 8, 16])),
)


@settings(max_examples=150, deadline=None)
@given(problem=UNALIGNED, seed=st.integers(0, 2**32))
def test_every_problem_has_schedules(problem: Problem, seed: int) -> None:
    schedule = sample(problem, H200, random.Random(seed))
    assert violations(problem, schedule, H200) == []
    assert Schedule.parse(schedule.name) == schedule
    assert nearest(schedule.to_json(), problem, H200) == schedule
    assert violations(problem, nearest(SCHEDULE.to_json(), problem, H200), H200) == []
    assert next(enumerate_schedules(problem, H200))
    # The companions are of the same kind and end at the same place inside 16 bytes.
    for companion in check.companions(problem, schedule, H200):
        assert companion.kind == problem.kind
        assert companion.n % 8 == problem.n % 8 or companion.n < 8


def test_a_plan_maps_only_what_tma_takes() -> None:
    plan = launch_plan(Problem(500, 501, 504, layout="nn"), replace(SCHEDULE, swap_ab=True))
    assert [spec.operand for spec in plan.tensor_maps] == ["a"]
    assert plan.needed == ("a", "b", "d")
    assert [(each.name, each.value) for each in plan.arguments] == [
        ("b", None),
        ("b_pitch", 501),
        ("d", None),
        ("d_pitch", 501),
    ]
    text = generate(ODD, SCHEDULE).text
    for absent in ("tensor_map", "tma_", "elect_one", "cp.async"):
        assert absent not in text
    assert max(map(len, text.splitlines())) <= 120
    assert "cp.async.ca" in generate(replace(ODD, k=500), SCHEDULE).text


@pytest.mark.parametrize(
    "problem",
    [
        ODD,
        Problem(500, 501, 504, layout="nn", epilogue="bias+gelu+residual"),
        Problem(500, 500, 500, layout="tn", dtype="fp16", overlap="weights"),
        Problem(500, 504, 500, batch=3, layout="tt", a_align=8, b_align=2),
        Problem(500, 501, 512, epilogue="bias_m+relu+residual", batch=2),
        Problem(500, 501, 503, epilogue="alpha+bias+silu+residual+beta"),
        Problem(500, 504, 503, epilogue="bias+aux+gelu+residual+beta"),
        Problem(500, 504, 503, out_dtype="fp32"),
    ],
    ids=lambda problem: problem.key,
)
def test_kernels_pass_the_audit(problem: Problem) -> None:
    rng = random.Random(problem.key)
    schedules = list(dict.fromkeys(sample(problem, H200, rng).kernel for _ in range(7)))
    with CompilePool(2) as pool:
        kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
    rejected = {s.name: kernel.reason for s, kernel in zip(schedules, kernels, strict=True) if kernel.status != "ok"}
    assert not rejected
