"""`tileseek query`: the best schedule known for a problem."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..api import best_schedule, load_table
from ..heuristics.query import Choice
from ..space import BadInput, NamedProblem
from .inputs import AsJson, Asked, TablePath, for_problems
from .output import print_json, print_table, progress


@for_problems
def command(
    asked: Asked,
    table: TablePath = None,
    device: Annotated[str | None, typer.Option(help="Device class, such as H200 (default: this machine's).")] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Go by the nearest problems alone where the table has none: in a millisecond."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the best schedule known for each problem, and where it comes from."""
    named = asked.problems
    source = load_table(table, device)
    if len(named) == 1:
        choice = best_schedule(named[0].problem, source, device, quick)
        if as_json:
            print_json(_document(named[0], choice))
        else:
            _print_choice(choice)
        return
    answers: list[tuple[NamedProblem, Choice | BadInput]] = []
    with progress("asking", len(named)) as advance:
        for each in named:
            try:
                answers.append((each, best_schedule(each.problem, source, device, quick)))
            except BadInput as error:
                answers.append((each, error))
            advance(each.name, len(answers))
    if as_json:
        print_json([_document(*answer) for answer in answers])
    else:
        print_table(["problem", "provenance", "us", "schedule"], [_row(*answer) for answer in answers])


def _document(named: NamedProblem, answer: Choice | BadInput) -> dict[str, Any]:
    head = {"name": named.name, "problem": named.problem.to_json()}
    if isinstance(answer, BadInput):
        return {**head, "error": str(answer)}
    launch = answer.launch
    return {
        **head,
        "schedule": answer.schedule.to_json(),
        "schedule_name": answer.schedule.name,
        "provenance": answer.provenance,
        "expected_us": answer.expected_us,
        "measured_on": answer.measured_on,
        "workspace": launch.workspace,
        "launch": {"grid": launch.grid, "block": launch.block, "cluster": launch.cluster, "smem": launch.smem},
        "origin": answer.origin.to_json() if answer.origin else None,
    }


def _print_choice(choice: Choice) -> None:
    origin = f", from {choice.origin.key}" if choice.provenance == "nearest" and choice.origin else ""
    launch = choice.launch
    print(choice.schedule.name)
    print(f"provenance   {choice.provenance}{origin}")
    print(f"expected     {choice.expected_us:.2f} us{_elsewhere(choice)}")
    print(f"launch       grid {launch.grid}, block {launch.block}, cluster {launch.cluster}, smem {launch.smem} bytes")
    print(f"workspace    {launch.workspace} bytes")


def _elsewhere(choice: Choice) -> str:
    """Says of a time that it was not measured on the device that was asked for."""
    measured_on = choice.measured_on
    return "" if measured_on in (None, choice.device.name) else f" (measured on {measured_on})"


def _row(named: NamedProblem, answer: Choice | BadInput) -> list[str]:
    if isinstance(answer, BadInput):
        return [named.name, "none", "-", str(answer)]
    return [named.name, answer.provenance, f"{answer.expected_us:.2f}{_elsewhere(answer)}", answer.schedule.name]
