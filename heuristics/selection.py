"""Who wins: the one rule by which shoot-outs and tables choose, and what they declare a tie."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..cost_model.costs import CYCLES, TIME, cost, power_limited, yardstick
from ..space import FOR_TIME, Device, Schedule, bottleneck
from .journal import Measure
from .noise import Margins, Noise


@dataclass(frozen=True, slots=True)
class Contender:
    """One that may win, with its cost and its cycles against a common reference: smaller is better."""

    schedule: Schedule
    cost: float
    cycles: float


@dataclass(frozen=True, slots=True)
class Selection:
    """The winner; those that the measurement does not tell from the cheapest, by name; and everybody's cost."""

    winner: Schedule
    tied: tuple[Schedule, ...]
    costs: Mapping[Schedule, float]


def select(contenders: Sequence[Contender], margins: Margins, incumbent: Schedule | None = None) -> Selection:
    """The winner of one or more contenders.

    Who is within the margin of the cheapest ties with it. A tie goes to the incumbent, then to the fewest cycles, which
    scatter less than times, then to the name. Cycles have a margin too, lest equal schedules take turns by chance.
    """
    cheapest = min(contender.cost for contender in contenders)
    tied = sorted((c for c in contenders if c.cost <= cheapest * (1 + margins.cost)), key=lambda c: c.schedule.name)
    fewest = min(contender.cycles for contender in tied)
    frugal = [contender.schedule for contender in tied if contender.cycles <= fewest * (1 + margins.cycles)]
    names = [contender.schedule for contender in tied]
    winner = incumbent if incumbent is not None and incumbent in names else frugal[0]
    return Selection(winner, tuple(s for s in names if s != winner), {c.schedule: c.cost for c in contenders})


def select_final(
    measures: Sequence[Measure],
    device: Device,
    noise: Noise,
    objective: str = FOR_TIME,
    incumbent: Schedule | None = None,
) -> Selection | None:
    """The winner among the measures of final shoot-outs on one problem; None when none is correct.

    The margins are those of the policies and of the kind of problem. A schedule that was measured several times counts
    by its medians. Where power holds the clock down, who gets the higher clock is chance (`noise.clock_repeats`): there
    cycles decide, among those that are not slower than the fastest by more than the margin of time.
    """
    correct = [measure for measure in measures if measure.status == "correct"]
    stick = yardstick(correct, objective)
    groups: dict[Schedule, list[Measure]] = defaultdict(list)
    for measure in correct:
        if cost(measure, stick) is not None:
            groups[measure.schedule].append(measure)
    if not groups:
        return None
    margins = margins_among(correct, {m.policy for m in correct}, device, noise, objective)
    if stick == CYCLES:
        times = {schedule: _median(group, TIME) for schedule, group in groups.items()}
        slowest = min(times.values()) * (1 + margins.cost)
        groups = {schedule: group for schedule, group in groups.items() if times[schedule] <= slowest}
        margins = replace(margins, cost=margins.cycles)
    contenders = [
        Contender(schedule, _median(group, stick), _median(group, CYCLES)) for schedule, group in groups.items()
    ]
    return select(contenders, margins, incumbent)


def margins_among(
    measures: Sequence[Measure], policies: Iterable[str], device: Device, noise: Noise, objective: str = FOR_TIME
) -> Margins:
    """What tells measures on one problem apart, some of them correct: the margins of the policies and of the kind of
    problem that they show it to be."""
    correct = [measure for measure in measures if measure.status == "correct"]
    us = min(measure.median_us or math.inf for measure in correct)
    limited = sum(map(power_limited, correct)) * 2 > len(correct)
    return noise.margins(policies, bottleneck(correct[0].problem, device, us, limited), objective)


def _median(measures: Sequence[Measure], stick: str) -> float:
    values = [value for measure in measures if (value := cost(measure, stick)) is not None]
    return statistics.median(values) if values else math.inf
