"""Tiles whose parts are added up by all that share them: the kernel's own functions, run on the CPU."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fibers import build
from tileseek.codegen import CompilePool, epilogue, generate, launch_plan
from tileseek.codegen.pieces import pieces
from tileseek.cost_model.draft import draft
from tileseek.space import H200, Problem, Schedule, domain, nearest, violations

LONG = Problem(256, 256, 65536)
SHARES = Schedule.parse("coop2_128x128x64_s5_w0_c1x1_tile_rm1_reg40-232_tma16x2_k32_shares")

HOST = """
static float4 load_global(const float4* source) { return *source; }
static void wait_for_count(const u32* counter, u32 count) { while (*counter < count) wait_a_turn(); }
static Barrier barriers[SPLIT_K * CONSUMERS];
static void named_sync(int, int) { barriers[current / 128].sync(128); }
"""

BODY = """
static u32 workspace[CONSUMERS];
static float4 memory[SPLIT_K * CONSUMERS * M64 * TILE_N * 16];
static int stored[CONSUMERS][PIECES], wrong;
// A value that tells part, warpgroup, thread and place; sums of them are exact.
static float value(int part, int consumer, int thread, int i, int j) {
  return part + 3 * (consumer + 2 * (thread % 7)) + 11 * i + j % 13;
}
template <int COLUMN, int WIDTH, int COUNT>
static void check(const float (&d)[COUNT], int block, int piece, int consumer, int thread) {
  stored[consumer][piece] += thread == 0;
  for (int j = COLUMN / 2; j < (COLUMN + WIDTH) / 2; ++j) {
    float sum = 0;
    for (int part = 0; part < SPLIT_K; ++part) sum += value(part, consumer, thread, block, j);
    wrong += sum != d[j];
  }
}
static void body(int fiber) {
  const int consumer = fiber / 128 % CONSUMERS, thread = fiber % 128, tile = 0;
  const int cluster_row = 0, cluster_column = 0;
  struct { int part; } unit_work{SPLIT_K - 1 - fiber / 128 / CONSUMERS};
  float4* const slots = memory;
  float accumulators[M64][TILE_N / 2];
  for (int i = 0; i < M64; ++i)
    for (int j = 0; j < TILE_N / 2; ++j) accumulators[i][j] = value(unit_work.part, consumer, thread, i, j);
  @LINES@
}
extern "C" int run() {
  for (int launch = 1; launch <= 2; ++launch) {
    run_fibers(SPLIT_K * CONSUMERS * 128, body);
    for (int consumer = 0; consumer < CONSUMERS; ++consumer) {
      wrong += workspace[consumer] != 0;
      for (int piece = 0; piece < PIECES; ++piece) wrong += stored[consumer][piece] != launch;
    }
  }
  return wrong;
}
"""


def host_source(s: Schedule) -> str:
    """The kernel's functions and the lines that call them, with a check in place of each piece's store."""
    text = generate(LONG, s).text
    constants = "\n".join(re.findall(r"^constexpr int .*", text, re.M))
    functions = next(part for part in epilogue.functions(LONG, s) if "keep_piece" in part)
    functions = "\n".join(line for line in functions.splitlines() if not line.startswith("constexpr"))
    step = next(line for line in text.splitlines() if line.startswith("constexpr int PART_STEP"))
    constants = constants.replace(step, "")
    numbers = {(piece.column, piece.block): number for number, piece in enumerate(pieces(LONG, s))}
    lines = []
    for line in epilogue.call(LONG, s):
        if staged := re.search(r"stage_piece<(\d+), (\d+)>\(accumulators\[(\d+)\]", line):
            column, width, block = map(int, staged.groups())
            number = numbers[column, block]
            lines.append(f"check<{column}, {width}>(accumulators[{block}], {block}, {number}, consumer, thread);")
        elif "tma_store" not in line and "named_sync" not in line:
            lines.append(line)
    return "\n".join([constants, step, HOST, functions, BODY.replace("@LINES@", "\n".join(lines))])


@pytest.mark.parametrize(
    "name",
    [
        "coop2_128x64x64_s4_w0_c1x1_tile_rm1_reg40-232_tma16x2_k5_shares",
        "coop1_128x40x64_s4_w0_c1x1_tile_rm1_reg0-0_tma32x2_k12_shares",
        "coop2_128x160x64_s4_w0_c1x1_tile_rm1_reg40-232_tma16x2_k2_shares",
        "coop1_64x128x64_s4_w0_c1x1_tile_rm1_reg0-0_tma64x2_k30_shares",
        "coop3_192x72x64_s4_w0_c1x1_tile_rm1_reg32-160_tma64x1_swap_k3_shares",
    ],
)
def test_every_piece_is_added_once_and_counters_are_zero_again(name: str, tmp_path: Path) -> None:
    assert build(host_source(Schedule.parse(name)), tmp_path, "shares").run() == 0


@pytest.mark.parametrize("epilogue_words", ["none", "bias+gelu"])
def test_kernels_compile(epilogue_words: str) -> None:
    problem = replace(LONG, epilogue=epilogue_words)
    names = [
        SHARES.name,
        "coop1_64x128x64_s5_w1_c1x1_tile_rm1_reg0-0_tma32x2_k7_shares",
        "coop1_128x80x64_s5_w1_c1x2_tile_rm1_reg0-0_tma16x2_k2_shares",
    ]
    with CompilePool(1) as pool:
        kernels = pool.compile_many([(problem, Schedule.parse(name)) for name in names])
    assert [kernel.reason for kernel in kernels] == [""] * len(names)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"split_k": 48}, "reduction shares on 192 CTAs: valid is at most one for each of 132 SMs"),
        ({"persistent": True}, "split_k 32 by shares in a persistent kernel"),
        ({"cluster_m": 2, "cluster_n": 2}, "reduction shares with cluster 2x2: valid are 1x1, 2x1 and 1x2"),
        ({"store": "direct", "epilogue_n": 64}, "split_k 32 by shares with direct stores"),
        ({"split_k": 1}, "reduction shares of whole tiles"),
    ],
)
def test_each_rule_names_the_value_it_refuses(changes: dict[str, Any], reason: str) -> None:
    assert any(reason in words for words in violations(LONG, replace(SHARES, **changes), H200))


@pytest.mark.parametrize(("arrangement", "epilogue"), [("coop1", "none"), ("coop1", "bias"), ("coop2", "bias")])
def test_parts_need_registers_beside_large_tiles(arrangement: str, epilogue: str) -> None:
    problem = Problem(256, 512, 8192, epilogue=epilogue)
    rows, registers = {"coop1": (128, "0-0"), "coop2": (256, "40-232")}[arrangement]

    def reasons(columns: int) -> list[str]:
        name = f"{arrangement}_{rows}x{columns}x64_s3_w0_c1x2_tile_rn1_reg{registers}_tma16x1_k4_shares"
        return violations(problem, Schedule.parse(name), H200)

    assert reasons(128) == []
    assert reasons(136) == ["136 accumulator registers a thread: valid is at most 128 with this register split"]


def test_the_draft_tries_it_where_few_tiles_have_a_long_k() -> None:
    assert "shares" in {s.reduction for s in draft(LONG, H200, 40)}


def test_workspace_holds_every_part() -> None:
    plan = launch_plan(LONG, SHARES)
    assert plan.grid(132) == 4 * 32
    assert plan.workspace_bytes(128) == 128 + 4 * 32 * 128 * 128 * 4


# Deterministic problems


def test_a_deterministic_problem_has_no_schedule_that_adds_in_the_order_of_arrival() -> None:
    problem = replace(LONG, deterministic=True)
    atomic = replace(SHARES, reduction="atomic")
    assert not violations(LONG, atomic, H200)
    reasons = violations(problem, atomic, H200)
    assert reasons == ["reduction atomic where the problem is deterministic: valid are cluster, slots, shares"]
    assert "atomic" not in domain("reduction", replace(atomic, reduction="cluster"), problem, H200)
    assert nearest(atomic.to_json(), problem, H200).numerics == "deterministic"
    assert {s.numerics for s in draft(problem, H200, 40)} == {"deterministic"}
    assert {s.numerics for s in draft(LONG, H200, 40)} == {"deterministic", "atomic"}
