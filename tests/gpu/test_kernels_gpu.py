"""Random kernels of the whole space, on the GPU: right on odd shapes to the bit, right on normal data, no hang."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tileseek.codegen import CompilePool
from tileseek.measure.policy import SCREEN
from tileseek.measure.results import Candidate
from tileseek.measure.supervisor import Measurer
from tileseek.space import Problem, Schedule, sample

pytestmark = pytest.mark.gpu

VERIFY = replace(SCREEN, name="verify", rounds=3, slot_ms=0.1, limited_slot_ms=0.1, spacer_ms=0.1, check_seeds=2)

PROBLEMS = [
    *(
        Problem(520, 776, 1032, dtype=dtype, layout=layout)
        for dtype in ("bf16", "fp16")
        for layout in ("nt", "nn", "tn", "tt")
    ),
    Problem(17, 2112, 7168),
    Problem(1, 5000, 4096),
    Problem(304, 264, 20000, layout="tn"),
    Problem(4999, 72, 64),
    Problem(128, 1280, 8192, overlap="weights"),
    *(
        Problem(520, 776, 1032, dtype=dtype, layout=layout, epilogue=epilogue)
        for dtype, layout, epilogue in (
            ("bf16", "nt", "bias+relu+residual"),
            ("bf16", "nt", "bias_m+gelu"),
            ("fp16", "nn", "bias+silu+residual"),
            ("bf16", "tt", "gelu_tanh+residual"),
            ("fp16", "nt", "bias+gelu_tanh"),
            ("bf16", "tn", "bias_m+relu+residual"),
        )
    ),
    Problem(17, 2112, 7168, epilogue="bias+gelu+residual"),
]


@pytest.fixture(scope="module")
def measurer() -> Measurer:
    with Measurer() as instrument:
        yield instrument


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_random_schedules_are_right(measurer: Measurer, problem: Problem) -> None:
    rng = random.Random(problem.key)
    schedules = list(dict.fromkeys(sample(problem, measurer.device, rng) for _ in range(40)))
    with CompilePool() as pool:
        kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
    candidates = [
        Candidate(schedule, kernel.cubin, kernel.entry, kernel.audit.registers)
        for schedule, kernel in zip(schedules, kernels, strict=True)
        if kernel.status == "ok" and kernel.audit is not None
    ]
    assert len(candidates) >= 0.9 * len(schedules)
    results = measurer.measure(problem, candidates, VERIFY)
    wrong = {result.schedule.name: (result.status, result.reason) for result in results if not result.correct}
    assert not wrong


def test_a_thousand_launches_leave_the_workspace_as_it_was(measurer: Measurer) -> None:
    problem = Problem(64, 1280, 8192)
    names = [
        "coop1_64x64x128_s5_w0_c1x1_tile_rm1_reg0-0_tma16x2_k4_slots",
        "coop1_64x64x128_s5_w0_c1x1_tile_rm1_reg0-0_tma16x2_k4_atomic",
        "coop1_64x64x128_s5_w0_c1x1_pall_rm1_reg0-0_tma16x2_sk_slots",
    ]
    schedules = [Schedule.parse(name) for name in names]
    with CompilePool() as pool:
        kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
    candidates = [Candidate(s, k.cubin, k.entry, 0) for s, k in zip(schedules, kernels, strict=True)]
    # Each slot is about a hundred calls, and outputs are compared again after the last.
    results = measurer.measure(problem, candidates, replace(VERIFY, rounds=12, slot_ms=1.5, limited_slot_ms=1.5))
    assert [result.status for result in results] == ["correct"] * 3
