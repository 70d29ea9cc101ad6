"""Schedules against cuBLAS and the best of cuBLASLt: the document of a bench file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from ..codegen.compiler import compile_kernel
from ..space import NamedProblem, Schedule
from .policy import FINAL, Policy
from .results import Candidate, Result
from .roofline import roofline_share, roofline_us
from .stats import estimate, geomean
from .supervisor import Measurer

OnRow = Callable[[dict[str, Any]], None]

RATIOS = ("ratio_cublas", "ratio_cublaslt_best")


@dataclass(frozen=True, slots=True)
class Case:
    """A problem and a schedule for it; `plain` is one for the product without the epilogue, to see what that costs. It
    writes into the same outputs, so they must be as large: no gated pairs."""

    named: NamedProblem
    schedule: Schedule
    plain: Schedule | None = None


def bench(
    measurer: Measurer,
    cases: Sequence[Case],
    policy: Policy = FINAL,
    on_row: OnRow | None = None,
) -> list[dict[str, Any]]:
    """One row for each case, in the bench format; `on_row` gets each as soon as it is measured.

    Times are microseconds of one call; ratios are their time over ours. A schedule that does not compile or is not
    correct has `correct` false, its `status` and `reason`, and null for what was not measured.

    Raises:
        BadInput: a problem cannot be measured.
        MeasureError: measuring fails for a reason that is not a schedule's.
    """
    rows = []
    for case in cases:
        row = _measure(measurer, case, policy)
        rows.append(row)
        if on_row:
            on_row(row)
    return rows


def _measure(measurer: Measurer, case: Case, policy: Policy) -> dict[str, Any]:
    problem = case.named.problem
    kernel = compile_kernel(problem, case.schedule)
    if kernel.status != "ok":
        return _row(measurer, case.named, Result(case.schedule, kernel.status, kernel.reason), None)
    candidates = [Candidate.of(case.schedule, kernel)]
    if case.plain is not None:
        kernel = compile_kernel(problem.plain, case.plain)
        if kernel.status == "ok":
            candidates.append(Candidate.of(case.plain, kernel, plain=True))
    result, *others = measurer.measure(problem, candidates, policy)
    plain = next((other for other in others if other.correct), None)
    return _row(measurer, case.named, result, over_plain(result, plain) if plain and result.correct else None)


def over_plain(fused: Result, plain: Result) -> dict[str, Any] | None:
    """What an epilogue costs: `time` and `cycles` of a call over those of the product alone in the same rounds, with
    their 95 % intervals, and the schedule of the latter. Cycles are time x effective clock. None when they have no
    round in common."""
    ours, theirs = _by_round(fused), _by_round(plain)
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        return None
    time, cycles = (estimate([ours[r][i] / theirs[r][i] for r in both]) for i in range(2))
    return {
        "schedule_name": plain.schedule.name,
        "time": time.median,
        "cycles": cycles.median,
        "ci95": {"time": (time.low, time.high), "cycles": (cycles.low, cycles.high)},
    }


def _by_round(result: Result) -> dict[int, tuple[float, float]]:
    """Microseconds and cycles of each round."""
    samples = zip(result.rounds, result.times_us, result.clocks_mhz, strict=True)
    return {index: (us, us * mhz) for index, us, mhz in samples}


def document(measurer: Measurer, policy: Policy, command: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The bench file of `rows`: how, where and when they were measured, by which command line."""
    return {
        "env": measurer.env,
        "policy": {**asdict(policy), "key": policy.key},
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": list(rows),
        "geomean": geomeans(rows),
    }


def geomeans(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The `geomean` object of a bench file, over the rows that are correct; null without any."""
    return {name: geomean([row[name] for row in rows if row["correct"]]) or None for name in RATIOS}


def _row(measurer: Measurer, named: NamedProblem, result: Result, cost: dict[str, Any] | None) -> dict[str, Any]:
    def known(value: Any) -> Any:
        return value if result.correct else None

    mhz = result.clock_mhz or 1.0
    return {
        "name": named.name,
        "problem": named.problem.to_json(),
        "schedule": result.schedule.to_json(),
        "schedule_name": result.schedule.name,
        "correct": result.correct,
        "status": result.status,
        "reason": result.reason,
        "ours_us": known(result.median_us),
        "cublas_us": known(result.ref_us),
        "cublaslt_best_us": known(result.best_us),
        "cublaslt_best": known(result.best),
        "ratio_cublas": known(result.ratio_to_ref),
        "ratio_cublaslt_best": known(result.ratio_to_best),
        "ratio_cycles_cublas": known(result.ratio_cycles),
        "ratio_cycles_cublaslt_best": known(result.ratio_cycles_best),
        "ci95": {
            "ratio_cublas": result.ci95.get("ratio_to_ref"),
            "ratio_cublaslt_best": result.ci95.get("ratio_to_best"),
            "ratio_cycles_cublas": result.ci95.get("ratio_cycles"),
            "ratio_cycles_cublaslt_best": result.ci95.get("ratio_cycles_best"),
        },
        "effective_mhz": known(result.clock_mhz),
        "power_w": known(result.power_w),
        "energy_mj": known(result.energy_mj) or None,
        "ratio_energy_cublas": known(result.ratio_energy) or None,
        "discarded": known(result.discarded),
        "power_limited": known(result.power_limited),
        "slot_ms": known(result.slot_ms),
        "rounds": len(result.times_us),
        "over_plain": cost,
        "roofline_us": known(roofline_us(named.problem, measurer.device, mhz)),
        "roofline_share": known(roofline_share(named.problem, measurer.device, mhz, result.median_us or 1.0)),
    }
