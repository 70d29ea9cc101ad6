"""`tileseek bench`: the best schedules known against cuBLAS, measured on this machine's GPU."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..api import best_schedule, load_table
from ..heuristics.query import Choice
from ..measure.gpus import hopper
from ..space import BadInput, Device, NamedProblem, shown, unsupported
from .inputs import (
    AsJson,
    Asked,
    DocumentPath,
    GpuNumber,
    TablePath,
    check_schedule,
    for_problems,
    one_problem,
    require,
    whole_number,
)
from .output import check_writable, command_line, deliver, notes, print_table, progress, stop_early

if TYPE_CHECKING:
    from ..measure.bench import Case
    from ..measure.policy import Policy


@for_problems
def command(
    asked: Asked,
    least: Annotated[int, typer.Option(parser=whole_number, help="Leave out problems whose m, n or k is smaller.")] = 1,
    schedule: Annotated[
        str | None, typer.Option(help="Name of a schedule, for one problem (default: the best known).")
    ] = None,
    policy: Annotated[str, typer.Option(help="How to measure: final (sustained, default), burst or screen.")] = "final",
    gpu: GpuNumber = 0,
    energy: Annotated[bool, typer.Option("--energy", help="Also measure the energy of a call (takes longer).")] = False,
    table: TablePath = None,
    out: DocumentPath = None,
    as_json: AsJson = False,
) -> None:
    """Measure against the cuBLAS default and the best of cuBLASLt, interleaved in rounds.

    A problem with an epilogue also runs without it in the same rounds, each with the best schedule known.

    A run that is interrupted keeps the rows it has.
    """
    from ..measure.bench import Case
    from ..measure.policy import POLICIES

    named = _at_least(least, asked.problems)
    if policy not in POLICIES:
        raise BadInput(f"policy is {shown(policy)}: valid are {', '.join(POLICIES)}")
    device = hopper(gpu).device
    require("tune", "torch", "cuda.bindings")
    if out is not None:
        check_writable(out)
    if schedule is not None:
        problem = one_problem(named)
        cases = [Case(named[0], check_schedule(schedule, problem, device))]
    else:
        cases = _best_known(named, table, device)
    rules = POLICIES[policy].with_energy() if energy else POLICIES[policy]
    document, stopped = _measure(cases, rules, gpu)
    deliver(document, out, as_json, _print)
    stop_early(stopped, f"stopped after {len(document['rows'])} of {len(cases)} problems")


def _at_least(size: int, named: Sequence[NamedProblem]) -> list[NamedProblem]:
    kept = [each for each in named if min(each.problem.m, each.problem.n, each.problem.k) >= size]
    if not kept:
        raise BadInput(f"--least {size} leaves none of {len(named)} problems: valid is a smaller size")
    return kept


def _best_known(named: Sequence[NamedProblem], table: Path | None, device: Device) -> list[Case]:
    from ..measure.bench import Case

    tuned = load_table(table, device)
    runnable = [each for each in named if not list(unsupported(each.problem, device))]
    if not runnable:
        raise BadInput(f"none of the problems can run: {'; '.join(unsupported(named[0].problem, device))}")
    if len(runnable) < len(named):
        left_out = ", ".join(each.name for each in named if each not in runnable)
        notes.print(f"{len(named) - len(runnable)} problems without a kernel left out: {left_out}")
    choices: list[Choice] = []
    with progress("choosing", len(runnable)) as advance:
        for each in runnable:
            choices.append(best_schedule(each.problem, tuned, device))
            advance(each.name, len(choices))
    guesses = sum(choice.provenance != "exact" for choice in choices)
    if guesses:
        notes.print(f"{guesses} of {len(choices)} problems are not in the table: their schedules are guesses")
    plain = [
        None
        if each.problem == each.problem.plain or each.problem.fused.gated
        # A gated pair stores half as much: no product to compare with.
        else best_schedule(each.problem.plain, tuned, device).schedule
        for each in runnable
    ]
    return [Case(each, choice.schedule, p) for each, choice, p in zip(runnable, choices, plain, strict=True)]


def _measure(cases: Sequence[Case], policy: Policy, gpu: int) -> tuple[dict[str, Any], str | None]:
    """The document, and what stopped it early: None for nothing, no words for Ctrl-C."""
    from ..codegen.compiler import CompilePool
    from ..measure.bench import bench, document
    from ..measure.supervisor import MeasureError, Measurer

    kernels = [(case.named.problem, case.schedule) for case in cases]
    kernels += [(case.named.problem.plain, case.plain) for case in cases if case.plain is not None]
    rows: list[dict[str, Any]] = []
    stopped = None
    with Measurer(gpu) as measurer:
        try:
            # Into the cache, from which `bench` takes them one by one.
            with CompilePool() as pool, progress("compiling", len(kernels)) as advance:
                done = itertools.count(1)
                pool.compile_many(kernels, lambda _, kernel: advance("compiling", next(done)))
            with progress("measuring", len(cases)) as advance:

                def keep(row: dict[str, Any]) -> None:
                    rows.append(row)
                    advance(row["name"], len(rows))

                bench(measurer, cases, policy, keep)
        except KeyboardInterrupt:
            stopped = ""
        except MeasureError as error:
            stopped = str(error)
        return document(measurer, policy, command_line(), rows), stopped


def _print(document: dict[str, Any]) -> None:
    def ratio(row: dict[str, Any], name: str) -> str:
        interval = row["ci95"][name]
        return f"{row[name]:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]" if row[name] and interval else "-"

    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    print_table(
        [
            "problem",
            "us",
            "cuBLAS us",
            "best Lt us",
            "vs cuBLAS",
            "vs best Lt",
            "in cycles",
            "roofline",
            "MHz",
            "W",
            "mJ",
            "schedule",
        ],
        [
            [
                row["name"],
                number(row["ours_us"], 2) if row["correct"] else row["status"],
                number(row["cublas_us"], 2),
                number(row["cublaslt_best_us"], 2),
                ratio(row, "ratio_cublas"),
                ratio(row, "ratio_cublaslt_best"),
                number(row["ratio_cycles_cublaslt_best"], 3),
                "-" if row["roofline_share"] is None else f"{row['roofline_share']:.0%}",
                number(row["effective_mhz"], 0),
                number(row["power_w"], 0),
                number(row["energy_mj"], 1),
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
    if costs := {row["name"]: row["over_plain"] for row in document["rows"] if row["over_plain"]}:
        print_table(
            ["fused", "time over plain", "cycles over plain", "plain schedule"],
            [[name, ratio(cost, "time"), ratio(cost, "cycles"), cost["schedule_name"]] for name, cost in costs.items()],
        )
