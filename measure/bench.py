"""Schedules against cuBLAS and the best of cuBLASLt: the rows of a bench file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..codegen.compiler import compile_kernel
from ..space import NamedProblem, Schedule
from .policy import FINAL, Policy
from .results import Candidate, Result
from .roofline import roofline_us
from .stats import geomean
from .supervisor import Measurer

OnRow = Callable[[dict[str, Any]], None]


def bench(
    measurer: Measurer,
    cases: Sequence[tuple[NamedProblem, Schedule]],
    policy: Policy = FINAL,
    on_row: OnRow | None = None,
) -> list[dict[str, Any]]:
    """One row for each (problem, schedule), in the bench format; `on_row` gets each as soon as it is measured.

    Times are microseconds of one call; ratios are their time over ours. A schedule that does not compile or is not
    correct has `correct` false, its `status` and `reason`, and no times.

    Raises:
        BadInput: a problem cannot be measured.
        MeasureError: measuring fails for a reason that is not a schedule's.
    """
    rows = []
    for named, schedule in cases:
        compiled = compile_kernel(named.problem, schedule)
        if compiled.status == "ok":
            registers = compiled.audit.registers if compiled.audit else 0
            candidate = Candidate(schedule, compiled.cubin, compiled.entry, registers)
            (result,) = measurer.measure(named.problem, [candidate], policy)
        else:
            result = Result(schedule, compiled.status, compiled.reason)
        row = _row(measurer, named, result)
        rows.append(row)
        if on_row:
            on_row(row)
    return rows


def geomeans(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The `geomean` object of a bench file, over the rows that are correct."""
    return {
        name: geomean([row[name] for row in rows if row["correct"]]) for name in ("ratio_cublas", "ratio_cublaslt_best")
    }


def _row(measurer: Measurer, named: NamedProblem, result: Result) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": named.name,
        "problem": named.problem.to_json(),
        "schedule": result.schedule.to_json(),
        "correct": result.correct,
    }
    if not result.correct:
        return row | {"status": result.status, "reason": result.reason}
    return row | {
        "ours_us": result.median_us,
        "cublas_us": result.ref_us,
        "cublaslt_best_us": result.best_us,
        "cublaslt_best": result.best,
        "ratio_cublas": result.ratio_to_ref,
        "ratio_cublaslt_best": result.ratio_to_best,
        "ci95": {
            "ratio_cublas": list(result.ci95["ratio_to_ref"]),
            "ratio_cublaslt_best": list(result.ci95["ratio_to_best"]),
            "ratio_cycles_cublaslt_best": list(result.ci95["ratio_cycles_best"]),
        },
        "ratio_cycles_cublaslt_best": result.ratio_cycles_best,
        "effective_mhz": result.clock_mhz,
        "power_w": result.power_w,
        "slot_ms": result.slot_ms,
        "rounds": len(result.times_us),
        "roofline_us": roofline_us(named.problem, measurer.device, result.clock_mhz),
    }
