"""`tileseek noise`: what measuring on this machine's GPU resolves, and whether repeated selections agree."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..api import best_schedule, load_table
from ..heuristics.noise import NOISE_VERSION, Noise, read_rows, resolvable
from ..heuristics.selection import Selection
from ..heuristics.table import Table
from ..measure.gpus import hopper
from ..space import BadInput, Device, NamedProblem, Problem, Schedule, shown, unsupported, violations
from .inputs import AsJson, Asked, DocumentPath, GpuNumber, TablePath, for_problems, require, whole_number
from .output import check_writable, command_line, deliver, notes, print_table, progress, stop_early

if TYPE_CHECKING:
    from ..measure.policy import Policy
    from ..measure.results import Candidate

ENTRANTS = 8
"""Schedules among which a repeated selection chooses."""


@for_problems
def command(
    asked: Asked,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="How to measure, may be repeated: screen, final-brief, final-short, final, burst."),
    ] = None,
    copies: Annotated[int, typer.Option(parser=whole_number, help="Equal schedules in the same rounds.")] = 4,
    calls: Annotated[int, typer.Option(parser=whole_number, help="Measurements of each problem and policy.")] = 6,
    selections: Annotated[
        int,
        typer.Option(
            parser=whole_number, help="Also select the best that often from the same schedules, by the last policy."
        ),
    ] = 0,
    energy: Annotated[
        bool, typer.Option("--energy", help="Also measure the noise of energy, with the first of the final policies.")
    ] = False,
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Document of this command whose rows count as well, of any card; may be repeated."
        ),
    ] = None,
    gpu: GpuNumber = 0,
    table: TablePath = None,
    out: DocumentPath = None,
    as_json: AsJson = False,
) -> None:
    """Measure how far results of one and the same schedule lie apart: smaller differences are no differences.

    The bundled suite `noise` has problems of each kind. Tables and searches take their margins from the document in
    results/; a run that is interrupted keeps what it has.
    """
    policies = _policies(policy or ["screen", "final-brief", "final"], energy)
    for name, value, least in (("copies", copies, 2), ("calls", calls, 1), ("selections", selections, 0)):
        if value < least:
            raise BadInput(f"--{name} is {value}: valid is {least} or more")
    read = [row for path in earlier or () for row in read_rows(path)]
    known = [row for row in read if _is_of_now(row)]
    if len(known) < len(read):
        of = sorted({row["policy"] for row in read if not _is_of_now(row)})
        notes.print(f"{len(read) - len(known)} of {len(read)} earlier rows left out: {', '.join(of)} had other rules")
    device = hopper(gpu).device
    for each in asked.problems:
        for reason in unsupported(each.problem, device):
            raise BadInput(f"{each.name}: {reason}")
    require("tune", "torch", "cuda.bindings")
    if out is not None:
        check_writable(out)
    plan = _Plan(policies, copies, calls, selections, known)
    document, stopped = _measure(asked.problems, plan, gpu, load_table(table, device))
    deliver(document, out, as_json, _print)
    stop_early(stopped, f"stopped after {len(document['rows']) - len(known)} measurements")


@dataclass(frozen=True, slots=True)
class _Plan:
    policies: Sequence[Policy]
    copies: int
    calls: int
    selections: int
    known: Sequence[dict[str, Any]]
    """Rows of earlier documents."""


def _known_policies() -> dict[str, Policy]:
    """Policies by name."""
    from ..measure.policy import POLICIES
    from ..search.shootout import FINALS

    return POLICIES | {policy.name: policy for policy in FINALS}


def _is_of_now(row: Mapping[str, Any]) -> bool:
    """Whether a row's policy has today's rules, with energy or without; those of before say nothing about them."""
    policy = _known_policies().get(row["policy_name"])
    return policy is None or row["policy"] in (policy.key, policy.with_energy().key)


def _policies(names: Sequence[str], energy: bool) -> list[Policy]:
    known = _known_policies()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadInput(f"policy is {shown(unknown[0])}: valid are {', '.join(known)}")
    policies = [known[name] for name in names]
    if energy:
        claiming = [policy for policy in policies if policy.claims]
        if not claiming:
            raise BadInput(
                f"--energy is given with policy {', '.join(names)}: valid is one of finals, such as final-brief"
            )
        policies[policies.index(claiming[0])] = claiming[0].with_energy()
    return policies


def _measure(named: Sequence[NamedProblem], plan: _Plan, gpu: int, table: Table) -> tuple[dict[str, Any], str | None]:
    """The document, and what stopped it early: None for nothing, no words for Ctrl-C."""
    from ..codegen import CompilePool
    from ..measure.supervisor import MeasureError, Measurer
    from ..search.repeat import noise_row, select_again, selection_row
    from ..search.runner import LiveRunner

    rows = list(plan.known)
    repeated: list[tuple[NamedProblem, Sequence[Schedule], list[Selection]]] = []
    last = plan.policies[-1]
    stopped = None
    total = len(named) * (plan.calls * len(plan.policies) + plan.selections)
    with CompilePool() as pool, Measurer(gpu) as measurer, progress("measuring", total) as advance:
        done = itertools.count(1)

        def count() -> None:
            advance("measuring", next(done))

        try:
            for each in named:
                candidate = _best(each.problem, table, measurer.device)
                for policy in plan.policies:
                    rows.append(noise_row(measurer, each, candidate, policy, plan.copies, plan.calls, count))
            if plan.selections:
                noise = Noise(resolvable(rows))
                with LiveRunner(pool, measurer) as runner:
                    for each in named:
                        entrants = _entrants(each.problem, table, measurer.device)
                        chosen: list[Selection] = []
                        repeated.append((each, entrants, chosen))
                        for _ in range(plan.selections):
                            chosen.append(select_again(runner, each, entrants, noise, last))
                            count()
        except KeyboardInterrupt:
            stopped = ""
        except MeasureError as error:
            stopped = str(error)
        document = {
            "v": NOISE_VERSION,
            "env": measurer.env,
            "command": command_line(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "copies": plan.copies,
            "calls": plan.calls,
            "resolvable": resolvable(rows),
            "rows": rows,
            "selections": [
                selection_row(measurer.device, each, entrants, last, chosen)
                for each, entrants, chosen in repeated
                if chosen
            ],
        }
    return document, stopped


def _best(problem: Problem, table: Table, device: Device) -> Candidate:
    from ..codegen import compile_kernel
    from ..measure.results import Candidate
    from ..measure.supervisor import MeasureError

    schedule = best_schedule(problem, table, device).schedule
    kernel = compile_kernel(problem, schedule)
    if kernel.status != "ok":
        raise MeasureError(f"{schedule} does not become a kernel: {kernel.reason}")
    return Candidate.of(schedule, kernel)


def _entrants(problem: Problem, table: Table, device: Device) -> list[Schedule]:
    """The best known schedule, the same under another name, the table's alternates, and the model's favourites."""
    from ..cost_model.draft import draft
    from ..search.repeat import twin

    best = best_schedule(problem, table, device).schedule
    other = twin(problem, best, device)
    known = table.by_problem[problem].schedules[1:] if problem in table.by_problem else ()
    found = [best, *([other] if other else []), *known, *draft(problem, device, ENTRANTS, 0)]
    return list(dict.fromkeys(s for s in found if not violations(problem, s, device)))[:ENTRANTS]


def _print(document: Mapping[str, Any]) -> None:
    print_table(
        ["problem", "kind", "policy", "quantity", "same rounds", "other calls", "largest"],
        [
            [row["name"], row["bottleneck"], row["policy_name"], quantity]
            + [f"{100 * spread[name]:.2f} %" for name in ("within", "between", "largest")]
            for row in document["rows"]
            for quantity, spread in row["scatter"].items()
        ],
    )
    for each in document["selections"]:
        apart = "never met" if each["twins_apart"] is None else f"{100 * each['twins_apart']:.2f} % apart at most"
        print(
            f"{each['name']}: {each['selections']} selections from {len(each['entrants'])} schedules,"
            f" {len(each['winners'])} winners, {each['ties']} declared a tie, {each['undeclared']} disagree without;"
            f" twins {apart}"
        )
