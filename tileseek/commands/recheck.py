"""`tileseek recheck`: whether a table still says what is measured, on this card and today."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..api import load_noise, load_table
from ..heuristics.journal import Journal
from ..heuristics.table import Table
from ..measure.gpus import hopper
from ..space import BadInput, NamedProblem
from .inputs import AsJson, Asked, DocumentPath, GpuNumber, TablePath, for_problems, require
from .output import check_writable, command_line, deliver, notes, print_table, progress, stop_early

if TYPE_CHECKING:
    from ..search.runner import LiveRunner, OnMeasure

DRIFT = 0.03
REGRET = 0.02
"""What still counts as the same: of a time, and of the choice against the fastest of today."""


@for_problems
def command(
    asked: Asked,
    gpu: GpuNumber = 0,
    table: TablePath = None,
    journal: Annotated[
        Path | None, typer.Option(help="Journal that gets what is measured, for `tileseek export table`.")
    ] = None,
    out: DocumentPath = None,
    as_json: AsJson = False,
) -> None:
    """Measure the schedules that a table names for problems, all of one problem in the same rounds, and compare.

    Says how many times are within 3 % of the table's, and how many choices within 2 % of the fastest. Problems that
    are not in the table are left out. With --journal the results are kept: a table that is made of that journal and
    those before it knows both cards.
    """
    named = asked.problems
    device = hopper(gpu).device
    tuned = load_table(table, device)
    known = [each for each in named if each.problem in tuned.runnable]
    if not known:
        raise BadInput(f"none of {len(named)} problems is in the table: valid are those it was tuned for")
    if len(known) < len(named):
        notes.print(f"{len(named) - len(known)} of {len(named)} problems are not in the table and left out")
    require("tune", "torch", "cuda.bindings")
    for file in (out, journal):
        if file is not None:
            check_writable(file)
    document, stopped = _measure(known, tuned, gpu, journal)
    deliver(document, out, as_json, _print)
    stop_early(stopped, f"stopped after {len(document['rows'])} of {len(known)} problems")


def _measure(
    named: Sequence[NamedProblem], table: Table, gpu: int, journal: Path | None
) -> tuple[dict[str, Any], str | None]:
    """The document, and what stopped it early: None for nothing, no words for Ctrl-C."""
    from ..codegen import CompilePool
    from ..measure.supervisor import MeasureError, Measurer
    from ..search.repeat import recheck_row
    from ..search.runner import LiveRunner

    rows: list[dict[str, Any]] = []
    stopped = None
    with (
        CompilePool() as pool,
        Measurer(gpu) as measurer,
        LiveRunner(pool, measurer) as runner,
        _keeping(journal, runner) as keep,
        progress("measuring", len(named)) as advance,
    ):
        noise = load_noise(measurer.device)
        try:
            for each in named:
                rows.append(recheck_row(runner, each, table.by_problem[each.problem], noise, keep))
                advance(each.name, len(rows))
        except KeyboardInterrupt:
            stopped = ""
        except MeasureError as error:
            stopped = str(error)
        document = {
            "env": measurer.env,
            "command": command_line(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "rows": rows,
            "summary": summary(rows),
        }
    return document, stopped


@contextmanager
def _keeping(journal: Path | None, runner: LiveRunner) -> Iterator[OnMeasure]:
    """What takes the measures: a journal, which is told of the environment, or nobody."""
    if journal is None:
        yield lambda _: None
        return
    with Journal(journal) as lines:
        lines.append({"kind": "env", "env": runner.env_key, **runner.env})
        yield lambda measure: lines.append(measure.raw)


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many problems, how many whose time is the table's still, and how many whose choice is."""
    return {
        "problems": len(rows),
        "times_kept": sum(row["drift"] is not None and abs(row["drift"]) <= DRIFT for row in rows),
        "choices_kept": sum(row["regret"] is not None and row["regret"] <= REGRET for row in rows),
    }


def _print(document: Mapping[str, Any]) -> None:
    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:+.1f} %"

    print_table(
        ["problem", "table us", "us", "drift", "regret", "fastest today"],
        [
            [
                row["name"],
                f"{row['table_us']:.2f}",
                row["status"] if row["us"] is None else f"{row['us']:.2f}",
                percent(row["drift"]),
                percent(row["regret"]),
                "the same" if row["best_today"] == row["schedule_name"] else str(row["best_today"]),
            ]
            for row in document["rows"]
        ],
    )
    kept = document["summary"]
    print(
        f"of {kept['problems']} problems {kept['times_kept']} have times within {DRIFT:.0%} of the table's,"
        f" {kept['choices_kept']} have a schedule within {REGRET:.0%} of the fastest"
    )
