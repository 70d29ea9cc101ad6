"""`tileseek bench`: the best schedules known against cuBLAS, measured on this machine's GPU."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..api import best_schedule, load_table
from ..gpus import hopper
from ..heuristics.report import geomean
from ..space import BadInput, NamedProblem, Problem, Schedule, unsupported
from .inputs import (
    AsJson,
    Dtype,
    Epilogue,
    Layout,
    Overlap,
    ProblemWords,
    TablePath,
    check_schedule,
    one_problem,
    read_problems,
    require,
    whole_number,
)
from .output import dumps_json, notes, print_table, progress, write_text

if TYPE_CHECKING:
    from ..measure.results import Candidate, Result


def command(
    problems: ProblemWords,
    dtype: Dtype = None,
    layout: Layout = None,
    epilogue: Epilogue = None,
    overlap: Overlap = None,
    schedule: Annotated[
        str | None, typer.Option(help="Name of a schedule, for one problem (default: the best known).")
    ] = None,
    policy: Annotated[str, typer.Option(help="How to measure: final (sustained, default), burst or screen.")] = "final",
    gpu: Annotated[int, typer.Option(parser=whole_number, help="Number of the GPU.")] = 0,
    table: TablePath = None,
    out: Annotated[Path | None, typer.Option(help="File that gets the JSON document.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure against the cuBLAS default and the best cuBLASLt algorithm, interleaved in rounds."""
    from ..measure.policy import POLICIES

    named = read_problems(problems, dtype=dtype, layout=layout, epilogue=epilogue, overlap=overlap)
    if policy not in POLICIES:
        raise BadInput(f"policy is {policy!r}: valid are {', '.join(POLICIES)}")
    device = hopper(gpu).device
    require("tune", "torch", "cuda.bindings")
    if schedule is not None:
        chosen = {one_problem(named): check_schedule(schedule, one_problem(named), device)}
    else:
        tuned = load_table(table)
        runnable = [each.problem for each in named if not list(unsupported(each.problem, device))]
        if not runnable:
            raise BadInput(f"none of the problems can run: {'; '.join(unsupported(named[0].problem, device))}")
        chosen = {problem: best_schedule(problem, tuned, device).schedule for problem in runnable}
    left_out = [each.name for each in named if each.problem not in chosen]
    if left_out:
        notes.print(f"{len(left_out)} problems without a kernel left out: {', '.join(left_out)}")
    document = _measure([each for each in named if each.problem in chosen], chosen, policy, gpu)
    if out is not None:
        write_text(out, dumps_json(document))
    if as_json:
        write_text(None, dumps_json(document))
    else:
        _print(document)


def _measure(
    named: Sequence[NamedProblem], chosen: dict[Problem, Schedule], policy_name: str, gpu: int
) -> dict[str, Any]:
    from ..measure.policy import POLICIES
    from ..measure.roofline import roofline_us
    from ..measure.supervisor import Measurer

    policy = POLICIES[policy_name]
    candidates = _compile(chosen)
    rows = []
    with Measurer(gpu) as measurer, progress("measuring", len(named)) as advance:
        for count, each in enumerate(named, 1):
            (result,) = measurer.measure(each.problem, [candidates[each.problem]], policy, None)
            roofline = roofline_us(each.problem, measurer.device, result.clock_mhz) if result.correct else None
            rows.append(_row(each, result, roofline))
            advance(each.name, count)
        env = measurer.env
    return {
        "env": env,
        "policy": {**asdict(policy), "key": policy.key},
        "command": shlex.join(["tileseek", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": rows,
        "geomean": {name: geomean(row[name] for row in rows) for name in ("ratio_cublas", "ratio_cublaslt_best")},
    }


def _compile(chosen: dict[Problem, Schedule]) -> dict[Problem, Candidate]:
    from ..codegen.compiler import CompilePool
    from ..measure.results import Candidate

    with CompilePool() as pool, progress("compiling", len(chosen)) as advance:
        done = itertools.count(1)
        kernels = pool.compile_many(list(chosen.items()), lambda _, kernel: advance("compiling", next(done)))
    candidates = {}
    for (problem, schedule), kernel in zip(chosen.items(), kernels, strict=True):
        if kernel.audit is None or kernel.status != "ok":
            raise BadInput(f"schedule {schedule} for {problem.key} does not compile ({kernel.status}): {kernel.reason}")
        candidates[problem] = Candidate(schedule, kernel.cubin, kernel.entry, kernel.audit.registers)
    return candidates


def _row(named: NamedProblem, result: Result, roofline: float | None) -> dict[str, Any]:
    """A row of the document; what was not measured is null."""

    def known(value: float) -> float | None:
        return value or None

    return {
        "name": named.name,
        "problem": named.problem.to_json(),
        "schedule": result.schedule.to_json(),
        "schedule_name": result.schedule.name,
        "ours_us": known(result.median_us),
        "cublas_us": known(result.ref_us),
        "cublaslt_best_us": known(result.best_us),
        "ratio_cublas": known(result.ratio_to_ref),
        "ratio_cublaslt_best": known(result.ratio_to_best),
        "ci95": {
            "ratio_cublas": result.ci95.get("ratio_to_ref"),
            "ratio_cublaslt_best": result.ci95.get("ratio_to_best"),
        },
        "ratio_cycles_cublaslt_best": known(result.ratio_cycles_best),
        "effective_mhz": known(result.clock_mhz),
        "power_w": known(result.power_w),
        "slot_ms": known(result.slot_ms),
        "roofline_us": roofline,
        "correct": result.correct,
        "status": result.status,
        "reason": result.reason,
    }


def _print(document: dict[str, Any]) -> None:
    def ratio(row: dict[str, Any], name: str) -> str:
        interval = row["ci95"][name]
        return f"{row[name]:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]" if row[name] and interval else "-"

    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    print_table(
        ["problem", "us", "cuBLAS us", "best Lt us", "vs cuBLAS", "vs best Lt", "MHz", "W", "schedule"],
        [
            [
                row["name"],
                number(row["ours_us"], 2) if row["correct"] else row["status"],
                number(row["cublas_us"], 2),
                number(row["cublaslt_best_us"], 2),
                ratio(row, "ratio_cublas"),
                ratio(row, "ratio_cublaslt_best"),
                number(row["effective_mhz"], 0),
                number(row["power_w"], 0),
                row["schedule_name"],
            ]
            for row in document["rows"]
        ],
    )
    mean = document["geomean"]
    print(
        f"geometric mean: {number(mean['ratio_cublas'], 3)} vs cuBLAS,"
        f" {number(mean['ratio_cublaslt_best'], 3)} vs best Lt"
    )
