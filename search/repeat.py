"""Measuring the measuring: equal schedules against each other, and whole selections over again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ..heuristics.noise import QUANTITIES, Noise, scatter
from ..heuristics.selection import Selection, select_final
from ..heuristics.table import Entry
from ..measure.policy import FINAL, Policy
from ..measure.results import Candidate, Result
from ..measure.supervisor import MeasureError, Measurer
from ..space import Device, NamedProblem, Problem, Schedule, bottleneck, violations
from .race import race
from .runner import OnMeasure, Runner
from .shootout import BRIEF_FINAL, FINALS
from .tuner import LAST

OnCall = Callable[[], None]


def noise_row(
    measurer: Measurer,
    named: NamedProblem,
    candidate: Candidate,
    policy: Policy,
    copies: int,
    calls: int,
    on_call: OnCall = lambda: None,
) -> dict[str, Any]:
    """How results of one schedule scatter: `copies` of it meet in the same rounds, in each of `calls` calls.

    A row of the noise document: `scatter` has for each quantity what `noise.scatter` says of it.

    Raises:
        MeasureError: a copy does not come out correct.
    """
    policy = replace(policy, check_repeats=0)
    results: list[list[Result]] = []
    for _ in range(calls):
        found = measurer.measure(named.problem, [candidate] * copies, policy)
        wrong = next((result for result in found if not result.correct), None)
        if wrong is not None:
            raise MeasureError(f"{named.name}: {wrong.schedule} is {wrong.status}: {wrong.reason}")
        results.append(found)
        on_call()
    everything = [result for call in results for result in call]
    us = median(result.median_us for result in everything)
    limited = 2 * sum(result.power_limited for result in everything) > len(everything)
    return {
        "name": named.name,
        "problem": named.problem.to_json(),
        "schedule_name": candidate.schedule.name,
        "policy": policy.key,
        "policy_name": policy.name,
        "bottleneck": bottleneck(named.problem, measurer.device, us, limited),
        "median_us": us,
        "discarded": sum(result.discarded for result in everything),
        "scatter": {
            quantity: scatter([[getattr(result, name) for result in call] for call in results])
            for quantity, name in QUANTITIES.items()
            if all(getattr(result, name) > 0 for result in everything)
        },
    }


def recheck_row(
    runner: Runner, named: NamedProblem, entry: Entry, noise: Noise, on_measure: OnMeasure = lambda _: None
) -> dict[str, Any]:
    """What a table says of a problem against what is measured today: its winner, those tied with it and its alternates
    meet in one shoot-out, of the policy that the table's time was measured with where that was one.

    `drift` is today's time over the table's, less one; `regret` the winner's time over that of today's fastest, less
    one; both null when the winner is not correct any more.
    """
    schedules = list(dict.fromkeys([*entry.schedules, *map(Schedule.parse, entry.tied)]))
    policy = next((each for each in FINALS if each.key == entry.policy), BRIEF_FINAL)
    measures = runner.measure(named.problem, schedules, policy, on_measure)
    selection = select_final(measures, runner.device, noise)
    own = next(measure for measure in measures if measure.schedule == entry.schedule)
    row: dict[str, Any] = {
        "name": named.name,
        "problem": named.problem.to_json(),
        "schedule_name": entry.schedule.name,
        "policy": policy.key,
        "status": own.status,
        "table_us": entry.median_us,
        "us": own.median_us,
        "drift": None,
        "regret": None,
        "best_today": None if selection is None else selection.winner.name,
    }
    if own.median_us is not None and selection is not None and entry.schedule in selection.costs:
        row["drift"] = own.median_us / entry.median_us - 1
        row["regret"] = selection.costs[entry.schedule] / min(selection.costs.values()) - 1
    return row


def twin(problem: Problem, schedule: Schedule, device: Device) -> Schedule | None:
    """The same kernel and launch under another name; None where none is known.

    A persistent kernel whose grid is capped at what the device holds at once: for kernels that fill an SM, which those
    with deep pipelines do, the cap changes nothing.
    """
    capped = replace(schedule, ctas=device.sm_count // schedule.cluster_size * schedule.cluster_size)
    fits = schedule.persistent and not schedule.ctas and not violations(problem, capped, device)
    return capped if fits else None


def select_again(
    runner: Runner, named: NamedProblem, entrants: Sequence[Schedule], noise: Noise, policy: Policy = FINAL
) -> Selection:
    """The best of the entrants, in a race and a shoot-out of their own.

    Raises:
        MeasureError: no entrant is correct.
    """
    finalists = race(runner, named.problem, entrants, LAST, lambda _: None, noise=noise)
    measures = runner.measure(named.problem, finalists, policy, lambda _: None)
    selection = select_final(measures, runner.device, noise)
    if selection is None:
        raise MeasureError(f"{named.name}: no entrant is correct")
    return selection


def selection_row(
    device: Device, named: NamedProblem, entrants: Sequence[Schedule], policy: Policy, chosen: Sequence[Selection]
) -> dict[str, Any]:
    """What selections from the same entrants, one or more, have in common.

    `winners` counts them; `undeclared` are the selections that neither chose the usual winner nor declared it tied.
    `twins_apart` is the largest difference reported between the first entrant and its `twin`, where that is another;
    null when they never met in a final.
    """
    first = entrants[0]
    other = twin(named.problem, first, device)
    winners = Counter(selection.winner for selection in chosen)
    usual = max(winners, key=lambda schedule: (winners[schedule], schedule))
    return {
        "name": named.name,
        "problem": named.problem.to_json(),
        "policy": policy.key,
        "entrants": [schedule.name for schedule in entrants],
        "selections": len(chosen),
        "winners": {schedule.name: times for schedule, times in winners.most_common()},
        "ties": sum(bool(selection.tied) for selection in chosen),
        "undeclared": sum(usual != selection.winner and usual not in selection.tied for selection in chosen),
        "twins_apart": max(
            (
                abs(selection.costs[first] / selection.costs[other] - 1)
                for selection in chosen
                if other is not None and {first, other} <= selection.costs.keys()
            ),
            default=None,
        ),
    }
