"""Measuring on a Hopper GPU: planted wrong kernels cost nothing but themselves, equal kernels are equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tileseek.codegen.compiler import compile_kernel
from tileseek.codegen.nvrtc import compile_source
from tileseek.codegen.source import generate
from tileseek.measure.bench import Case, bench, geomeans
from tileseek.measure.policy import BURST_FINAL, FINAL, SCREEN
from tileseek.measure.results import Candidate
from tileseek.measure.supervisor import Measurer
from tileseek.space import H200, NamedProblem, Problem, Schedule, nearest, violations

pytestmark = pytest.mark.gpu

PROBLEM = Problem(1024, 2048, 4096)
QUICK = replace(SCREEN, timeout_s=10.0)

_DIRECT = {"arrangement": "coop", "consumers": 2, "tile_m": 128, "tile_n": 128, "tile_k": 64, "stages": 4}

PLANTED = {
    "never writes": ("", "correctness"),
    "writes zeros": (
        "for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < m * d_pitch; i += gridDim.x * blockDim.x)"
        " d[i] = 0;",
        "correctness",
    ),
    "writes before the output": ("if (threadIdx.x == 0) d[-8] = 0;", "correctness"),
    "illegal address": ("*(volatile int*)(threadIdx.x * 4ull) = 1;", "runtime"),
    "endless": ("volatile unsigned short* p = d; while (*p != 1) *p = 0;", "timeout"),
    "trap": ("__trap();", "runtime"),
}


def schedule(store: str) -> Schedule:
    found = nearest({**_DIRECT, "store": store}, PROBLEM, H200)
    assert found.store == store
    assert not violations(PROBLEM, found, H200)
    return found


def good(problem: Problem, chosen: Schedule) -> Candidate:
    compiled = compile_kernel(problem, chosen)
    assert compiled.status == "ok", compiled.reason
    assert compiled.audit
    return Candidate(chosen, compiled.cubin, compiled.entry, compiled.audit.registers)


def built(text: str, entry: str, chosen: Schedule) -> Candidate:
    compilation = compile_source(text)
    assert compilation.cubin, compilation.log
    return Candidate(chosen, compilation.cubin, entry, 0)


def planted(body: str, chosen: Schedule) -> Candidate:
    """The kernel of a schedule that stores directly, with another body: what it is called with stays the same."""
    source = generate(PROBLEM, chosen)
    head, start, _ = source.text.partition("long long d_pitch) {\n  extern __shared__")
    assert start
    return built(f"{head}long long d_pitch) {{ {body} }}", source.entry, chosen)


def skips_the_tail_of_k(chosen: Schedule) -> Candidate:
    """Right where K is a multiple of the stage, as in PROBLEM: only an odd-shaped companion shows it."""
    source = generate(PROBLEM, chosen)
    whole = "(k + TILE_K - 1) / TILE_K"
    assert whole in source.text
    return built(source.text.replace(whole, "max(1, k / TILE_K)"), source.entry, chosen)


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer() as measurer:
        yield measurer


def test_planted_kernels_get_their_status_and_leave_the_others_alone(measurer: Measurer) -> None:
    direct, tma = schedule("direct"), schedule("tma")
    wrong = [planted(body, direct) for body, _ in PLANTED.values()]
    candidates = [good(PROBLEM, tma), *wrong, skips_the_tail_of_k(tma), good(PROBLEM, direct)]
    results = measurer.measure(PROBLEM, candidates, QUICK)
    expected = ["correct", *(status for _, status in PLANTED.values()), "correctness", "correct"]
    assert [result.status for result in results] == expected, [result.reason for result in results]
    assert results[0].check["companions"]


def test_equal_schedules_are_equal(measurer: Measurer) -> None:
    for problem in (Problem(16, 4096, 4096), Problem(4096, 4096, 4096)):
        candidate = good(problem, nearest({**_DIRECT, "store": "tma", "tile_n": 256}, problem, H200))
        first, second = measurer.measure(problem, [candidate, candidate], replace(SCREEN, rounds=15))
        assert first.correct
        assert second.correct
        assert first.ratio_cycles == pytest.approx(second.ratio_cycles, rel=0.01)


def test_a_result_says_how_it_was_measured(measurer: Measurer) -> None:
    (result,) = measurer.measure(PROBLEM, [good(PROBLEM, schedule("tma"))], QUICK)
    assert result.correct
    assert len(result.times_us) == QUICK.rounds
    assert result.ref == "cublas"
    assert 0 < result.best_us <= result.ref_us * 1.001
    assert 300 < result.clock_mhz <= H200.max_clock_mhz * 1.01
    assert 50 < result.power_w < 1000
    assert all(low <= getattr(result, name) <= high for name, (low, high) in result.ci95.items())
    assert measurer.env["sm_count"] == 132


def test_bench_rows_for_both_regimes(measurer: Measurer) -> None:
    case = Case(NamedProblem("middle", PROBLEM), schedule("tma"))
    for policy in (replace(FINAL, rounds=7), replace(BURST_FINAL, rounds=3)):
        rows = bench(measurer, [case], policy)
        assert rows[0]["correct"]
        assert rows[0]["ours_us"] >= rows[0]["roofline_us"] * 0.97
        assert geomeans(rows)["ratio_cublas"] == pytest.approx(rows[0]["ratio_cublas"])


def test_bench_tells_what_an_epilogue_costs(measurer: Measurer) -> None:
    fused = replace(PROBLEM, epilogue="bias+gelu+residual")
    (row,) = bench(measurer, [Case(NamedProblem("fused", fused), schedule("tma"), schedule("tma"))], QUICK)
    assert row["correct"]
    low, high = row["over_plain"]["ci95"]["cycles"]
    assert 0.9 < low <= row["over_plain"]["cycles"] <= high < 2


def test_a_problem_larger_than_the_gpu_is_memory(measurer: Measurer) -> None:
    huge = Problem(200_000, 200_000, 64)
    (result,) = measurer.measure(huge, [good(huge, schedule("tma"))], QUICK)
    assert result.status == "memory"
    assert "GiB" in result.reason
