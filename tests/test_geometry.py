"""Batches and pitches: what a launch is told of where matrices lie, and kernels that compile."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tileseek.codegen import CompilePool, generate, launch_plan
from tileseek.codegen.plan import BATCH_INT_ARGUMENTS, INT_ARGUMENTS
from tileseek.space import H200, BadInput, Pitch, Pitches, Problem, Schedule, sample

SINGLE = Problem(512, 768, 1024)
BATCH = replace(SINGLE, batch=6)
COOPERATIVE = Schedule.parse("coop2_128x256x64_s4_w0_c2x1_pall_rm8_reg40-232_tma32x2")
SPLIT = Schedule.parse("coop1_64x64x128_s5_w0_c1x1_tile_rm1_reg0-0_tma16x2_k4_slots")


def test_one_product_is_planned_as_ever() -> None:
    plan = launch_plan(SINGLE, COOPERATIVE)
    assert len(plan.ints) == len(INT_ARGUMENTS)
    assert [(spec.operand, spec.extents, spec.pitches_bytes) for spec in plan.tensor_maps] == [
        ("a", (1024, 512), (2048,)),
        ("b", (1024, 768), (2048,)),
        ("d", (768, 512), (1536,)),
    ]


def test_a_batch_has_maps_of_three_dimensions() -> None:
    plan = launch_plan(replace(BATCH, broadcast="b", layout="nn"), COOPERATIVE)
    assert [(spec.operand, spec.extents, spec.pitches_bytes) for spec in plan.tensor_maps] == [
        ("a", (1024, 512, 6), (2048, 512 * 2048)),
        ("b", (768, 1024, 1), (1536, 1536)),
        ("d", (768, 512, 6), (1536, 512 * 1536)),
    ]
    assert all(spec.box[2] == 1 for spec in plan.tensor_maps)
    ints = dict(zip(BATCH_INT_ARGUMENTS, plan.ints, strict=True))
    assert (ints["batch"], ints["a_step"], ints["b_step"]) == (6, 1, 0)
    swapped = launch_plan(replace(BATCH, broadcast="b"), replace(COOPERATIVE, swap_ab=True))
    ints = dict(zip(BATCH_INT_ARGUMENTS, swapped.ints, strict=True))
    assert (ints["a_step"], ints["b_step"]) == (0, 1), "the kernel's A is B"


def test_a_batch_is_that_many_times_the_work() -> None:
    single, batch = launch_plan(SINGLE, SPLIT), launch_plan(BATCH, SPLIT)
    assert batch.units == 6 * single.units
    assert single.workspace and batch.workspace
    assert batch.workspace.slots == 6 * single.workspace.slots


def test_pitches_reach_the_maps_and_the_pointers() -> None:
    problem = replace(BATCH, epilogue="residual")
    pitches = Pitches(Pitch(1040, 2**20), Pitch(1032, 2**21), Pitch(800, 2**22), Pitch(808, 2**23))
    plan = launch_plan(problem, COOPERATIVE, pitches)
    assert [spec.pitches_bytes for spec in plan.tensor_maps] == [(2080, 2**21), (2064, 2**22), (1600, 2**23)]
    assert {each.name: each.value for each in plan.arguments} == {"c": None, "c_pitch": 808, "c_batch": 2**23}
    staged = launch_plan(problem, replace(COOPERATIVE, residual_buffers=1), pitches)
    assert staged.tensor_maps[-1].pitches_bytes == (1616, 2**24)
    assert staged.arguments == ()
    direct = replace(COOPERATIVE, store="direct", epilogue_n=64)
    assert {each.name: each.value for each in launch_plan(SINGLE, direct, pitches).arguments} == {
        "d": None,
        "d_pitch": 800,
    }
    assert generate(BATCH, direct).text.count("long long d_pitch, long long d_batch") == 1


@pytest.mark.parametrize("row", [0, 1025, 2**40])
def test_pitches_that_tma_does_not_take_are_refused(row: int) -> None:
    pitches = replace(Pitches.of(SINGLE), a=Pitch(row, 0))
    with pytest.raises(BadInput, match=f"a pitch of A is {2 * row} bytes: valid are multiples of 16"):
        launch_plan(SINGLE, COOPERATIVE, pitches)


def compiled(problem: Problem, count: int) -> dict[str, str]:
    """Names of random schedules -> why their kernel is rejected."""
    rng = random.Random(problem.key)
    schedules = list(dict.fromkeys(sample(problem, H200, rng).kernel for _ in range(count)))
    with CompilePool(2) as pool:
        kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
    return {schedule.name: kernel.reason for schedule, kernel in zip(schedules, kernels, strict=True)}


@pytest.mark.parametrize(
    "problem",
    [BATCH, replace(BATCH, layout="tn", dtype="fp16", epilogue="bias+gelu+residual", overlap="launch")],
    ids=lambda problem: problem.key,
)
def test_kernels_of_batches_pass_the_audit(problem: Problem) -> None:
    reasons = [reason for reason in compiled(problem, 12).values() if reason]
    assert len(reasons) <= 1, reasons


def test_a_batch_has_another_source_and_broadcast_has_not() -> None:
    text = generate(BATCH, COOPERATIVE).text
    assert text != generate(SINGLE, COOPERATIVE).text
    assert text == generate(replace(BATCH, batch=2, broadcast="a"), COOPERATIVE).text
    assert max(map(len, text.splitlines())) <= 120
