"""Schedules against cuBLAS and the best of cuBLASLt: the document of a bench file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ..codegen.compiler import compile_kernel
from ..space import NamedProblem, Schedule
from .policy import FINAL, Policy
from .results import Candidate, Result
from .roofline import roofline_share, roofline_us
from .stats import geomean
from .supervisor import Measurer

OnRow = Callable[[dict[str, Any]], None]

RATIOS = ("ratio_cublas", "ratio_cublaslt_best")


def bench(
    measurer: Measurer,
    cases: Sequence[tuple[NamedProblem, Schedule]],
    policy: Policy = FINAL,
    on_row: OnRow | None = None,
) -> list[dict[str, Any]]:
    """One row for each (problem, schedule), in the bench format; `on_row` gets each as soon as it is measured.

    Times are microseconds of one call; ratios are their time over ours. A schedule that does not compile or is not
    correct has `correct` false, its `status` and `reason`, and null for what was not measured.

    Raises:
        BadInput: a problem cannot be measured.
        MeasureError: measuring fails for a reason that is not a schedule's.
    """
    rows = []
    for named, schedule in cases:
        compiled = compile_kernel(named.problem, schedule)
        if compiled.status == "ok":
            (result,) = measurer.measure(named.problem, [Candidate.of(schedule, compiled)], policy)
        else:
            result = Result(schedule, compiled.status, compiled.reason)
        row = _row(measurer, named, result)
        rows.append(row)
        if on_row:
            on_row(row)
    return rows


def document(measurer: Measurer, policy: Policy, command: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The bench file of `rows`: how, where and when they were measured, by which command line."""
    return {
        "env": measurer.env,
        "policy": {**asdict(policy), "key": policy.key},
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": list(rows),
        "geomean": geomeans(rows),
        "fused_over_plain": fused_over_plain(rows),
    }


def geomeans(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The `geomean` object of a bench file, over the rows that are correct; null without any."""
    return {name: geomean([row[name] for row in rows if row["correct"]]) or None for name in RATIOS}


def fused_over_plain(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What an epilogue costs: for each row that has one, by its name, the row of the same product without it, and the
    `time` and `cycles` of the first over those of the second. Times of separate rows see different clocks where the GPU
    is limited by power; cycles do not."""
    right = [row for row in rows if row["correct"]]
    plain = {_without_epilogue(row): row for row in right if row["problem"]["epilogue"] == "none"}
    costs = {}
    for row in right:
        base = plain.get(_without_epilogue(row))
        if base is not None and base is not row:
            time = row["ours_us"] / base["ours_us"]
            cycles = time * row["effective_mhz"] / base["effective_mhz"]
            costs[row["name"]] = {"plain": base["name"], "time": time, "cycles": cycles}
    return costs


def _without_epilogue(row: dict[str, Any]) -> str:
    return str({name: value for name, value in row["problem"].items() if name != "epilogue"})


def _row(measurer: Measurer, named: NamedProblem, result: Result) -> dict[str, Any]:
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
        "roofline_us": known(roofline_us(named.problem, measurer.device, mhz)),
        "roofline_share": known(roofline_share(named.problem, measurer.device, mhz, result.median_us or 1.0)),
    }
