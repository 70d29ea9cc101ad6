"""Failures that users of auto-tuners report, planted on a real GPU: spoiled kernels, crashes among good candidates."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from plants import DIRECT, PLANTS, PROBLEM, SPLIT, spoiled
from tileseek.codegen import CompilePool
from tileseek.codegen.nvrtc import compile_source
from tileseek.codegen.source import generate
from tileseek.measure.policy import FINAL, SCREEN
from tileseek.measure.results import Candidate, Result
from tileseek.measure.supervisor import Measurer
from tileseek.space import Problem, Schedule, sample

pytestmark = pytest.mark.gpu

QUICK = replace(SCREEN, timeout_s=10.0, check_repeats=300)


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer() as measurer:
        yield measurer


def good(schedules: list[Schedule], problem: Problem = PROBLEM) -> list[Candidate]:
    with CompilePool() as pool:
        kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
    return [Candidate.of(s, kernel) for s, kernel in zip(schedules, kernels, strict=True) if kernel.status == "ok"]


def body(text: str) -> Candidate:
    """The launch of DIRECT with another body."""
    source = generate(PROBLEM, DIRECT)
    head, start, _ = source.text.partition("long long d_pitch) {\n  extern __shared__")
    assert start
    compilation = compile_source(f"{head}long long d_pitch) {{ {text} }}")
    assert compilation.cubin, compilation.log
    return Candidate(DIRECT, compilation.cubin, source.entry, 0)


# ---- wrong kernels


@pytest.fixture(scope="module")
def outcomes(measurer: Measurer) -> dict[str, Result]:
    """The plants, between two good kernels."""
    candidates = [*good([SPLIT]), *(spoiled(name) for name in PLANTS), *good([DIRECT])]
    results = measurer.measure(PROBLEM, candidates, QUICK)
    return dict(zip(["first", *PLANTS, "last"], results, strict=True))


@pytest.mark.parametrize("name", PLANTS)
def test_a_kernel_that(outcomes: dict[str, Result], name: str) -> None:
    assert outcomes[name].status == "correctness", outcomes[name].reason


def test_good_kernels_among_wrong_ones_are_right(outcomes: dict[str, Result]) -> None:
    for name in ("first", "last"):
        assert outcomes[name].correct, outcomes[name].reason
        assert outcomes[name].check["repeats"] == 300


def test_each_wrong_kernel_is_caught_by_the_check_made_for_it(outcomes: dict[str, Result]) -> None:
    reasons = {
        "is wrong only at edges": "wrong for",
        "leaves its workspace dirty": "wrong for",
        "writes behind the output": "outside the output",
        "is wrong once in a hundred launches": "further launches",
        "is right before timing and wrong after": "after timing",
    }
    for name, words in reasons.items():
        assert words in outcomes[name].reason


# ---- harm to others


@pytest.mark.timeout(400)
def test_fifty_candidates_of_which_ten_crash_hang_or_lie(measurer: Measurer) -> None:
    """The other forty get the times they have without them. Prints what the ten cost (`pytest -s`)."""
    rng = random.Random(0)
    schedules: dict[Schedule, None] = {}
    while len(schedules) < 44:
        schedules[sample(PROBLEM, measurer.device, rng)] = None
    fine = good(list(schedules))[:40]
    assert len(fine) == 40
    illegal, trap = body("*(volatile int*)(threadIdx.x * 4ull) = 1;"), body("__trap();")
    misaligned = body("*(volatile int*)((char*)d + 1) = 1;")
    hang = body("volatile unsigned short* p = d; while (*p != 1) *p = 0;")
    lies = [spoiled(name) for name in ("never writes", "is wrong only at edges", "leaves its workspace dirty")]
    bad = [illegal, trap, misaligned, hang, *lies, illegal, trap, hang]
    mixed = [*fine, *bad]
    rng.shuffle(mixed)
    policy = replace(QUICK, check_repeats=0, rounds=9, timeout_s=5.0)
    restart = time.monotonic()
    measurer.measure(PROBLEM, [trap], policy)  # ends the worker
    measurer.measure(PROBLEM, fine[:1], policy)
    restart = time.monotonic() - restart
    begin = time.monotonic()
    alone = measurer.measure(PROBLEM, fine, policy)
    between = time.monotonic()
    found = measurer.measure(PROBLEM, mixed, policy)
    overhead = time.monotonic() - between - (between - begin)
    beside = {id(candidate): result for candidate, result in zip(mixed, found, strict=True)}
    apart = [
        beside[id(candidate)].ratio_to_ref / result.ratio_to_ref - 1
        for candidate, result in zip(fine, alone, strict=True)
        if result.correct
    ]
    print(f"\n10 of 50 fail: {overhead:.1f} s more, where a restart takes {restart:.1f} s and a hang 5 s")
    print(f"the others' ratios differ by {max(map(abs, apart)):.2%} at most")
    assert all(beside[id(candidate)].correct == result.correct for candidate, result in zip(fine, alone, strict=True))
    assert not any(beside[id(candidate)].correct for candidate in bad)
    assert sorted(map(abs, apart))[len(apart) // 2] < 0.01
    assert overhead <= 10 * (restart + policy.timeout_s)


def test_a_hang_leaves_the_gpu_idle(measurer: Measurer) -> None:
    hang = body("volatile unsigned short* p = d; while (*p != 1) *p = 0;")
    (fine,) = good([DIRECT])
    (before,) = measurer.measure(PROBLEM, [fine], QUICK)
    found = measurer.measure(PROBLEM, [hang, fine], replace(QUICK, timeout_s=3.0))
    assert [result.status for result in found] == ["timeout", "correct"]
    assert found[1].ratio_to_ref == pytest.approx(before.ratio_to_ref, rel=0.02)


# ---- energy


def test_energy_is_power_times_time_and_repeats(measurer: Measurer) -> None:
    problem = Problem(4096, 4096, 4096)
    (candidate,) = good([DIRECT], problem)
    policy = replace(FINAL, rounds=5, check_repeats=0).with_energy()
    first, second = measurer.measure(problem, [candidate, candidate], policy)
    assert first.correct and second.correct
    print(f"\nenergy of a call: {first.energy_mj:.2f} and {second.energy_mj:.2f} mJ, {first.power_w:.0f} W")
    assert first.energy_mj == pytest.approx(second.energy_mj, rel=0.03)
    assert first.energy_mj == pytest.approx(first.power_w * first.median_us / 1000, rel=0.15)
    assert first.ratio_energy > 0
