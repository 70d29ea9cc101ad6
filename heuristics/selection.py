"""Who wins: the one rule by which shoot-outs and tables choose, and what they declare a tie."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..cost_model.costs import CYCLES, MICROSECONDS, TIME, held_by_clock, yardstick
from ..space import FOR_TIME, Device, Schedule, bottleneck
from .journal import Measure
from .noise import Margins, Noise
from .pooling import pooled_costs

OF_CHANCE = 2.0
"""Margins within which who is behind the best of several stays in the choice: one tells two schedules apart, but the
best of several has had chance on its side."""

Interval = tuple[float, float]
"""Of a cost: low and high."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The winner; those that the measurement does not tell from the cheapest, by name; and everybody's cost."""

    winner: Schedule
    tied: tuple[Schedule, ...]
    costs: Mapping[Schedule, float]


def select(
    costs: Mapping[Schedule, float],
    margin: float,
    incumbent: Schedule | None = None,
    intervals: Mapping[Schedule, Interval] | None = None,
) -> Selection:
    """The winner among schedules and their costs, one or more.

    Who is within the relative `margin` of the cheapest ties with it, and so does whose interval of costs meets that of
    the cheapest, where they have one. A tie goes to the incumbent, otherwise to the cheapest, whom a selection that is
    repeated wins again or ties with. Equal costs go by name.
    """
    ranked = sorted(costs, key=lambda s: (costs[s], s.name))
    spans = {s: (c, c) for s, c in costs.items()} | dict(intervals or {})
    limit, most = costs[ranked[0]] * (1 + margin), spans[ranked[0]][1]
    tied = [s for s in ranked if costs[s] <= limit or spans[s][0] <= most]
    winner = incumbent if incumbent is not None and incumbent in tied else ranked[0]
    return Selection(winner, tuple(sorted((s for s in tied if s != winner), key=lambda s: s.name)), costs)


def select_final(
    measures: Sequence[Measure],
    device: Device,
    noise: Noise,
    objective: str = FOR_TIME,
    incumbent: Schedule | None = None,
) -> Selection | None:
    """The winner among the measures of final shoot-outs on one problem; None when none is correct.

    The margins are those of the policies and of the kind of problem; times also tie whose intervals over the rounds
    meet. What was measured several times counts by all of it (`pooling.pooled_costs`). Where the clock is held down and
    decides, who gets the higher clock is chance (`noise.clock_repeats`): there cycles decide, among those that are not
    slower than the fastest by more than twice the margin of time. Who is slower costs as much more than the cheapest of
    those as its time is longer than the fastest.
    """
    correct = [measure for measure in measures if measure.status == "correct"]
    stick = yardstick(correct, objective)
    costs = pooled_costs(correct, stick)
    if not costs:
        return None
    margins = margins_among(correct, {m.policy for m in correct}, device, noise, objective)
    if stick != CYCLES:
        return select(costs, margins.cost, incumbent, cost_intervals(correct, costs, stick))
    times = pooled_costs(correct, TIME)
    fastest = min(times.values())
    eligible = {s: costs[s] for s in costs if times[s] <= fastest * (1 + OF_CHANCE * margins.cost)}
    slower = {s: min(eligible.values()) * times[s] / fastest for s in costs if s not in eligible}
    return replace(select(eligible, margins.cycles, incumbent), costs=eligible | slower)


def cost_intervals(
    measures: Iterable[Measure], costs: Mapping[Schedule, float], stick: str
) -> dict[Schedule, Interval]:
    """Between which costs each schedule lies with 95 % probability, by its own times over the rounds: wide for kernels
    that depend on what ran before them. Of cycles none are known."""
    if stick not in (TIME, MICROSECONDS):
        return {}
    intervals: dict[Schedule, list[Interval]] = defaultdict(list)
    for measure in measures:
        if measure.interval is not None and measure.schedule in costs:
            intervals[measure.schedule].append(measure.interval)
    found = {}
    for schedule, known in intervals.items():
        low, high = (statistics.median(ends) for ends in zip(*known, strict=True))
        found[schedule] = (costs[schedule] * low, costs[schedule] * high)
    return found


def margins_among(
    measures: Sequence[Measure], policies: Iterable[str], device: Device, noise: Noise, objective: str = FOR_TIME
) -> Margins:
    """What tells measures on one problem apart, some of them correct: the margins of the policies and of the kind of
    problem that they show it to be."""
    correct = [measure for measure in measures if measure.status == "correct"]
    us = min(measure.median_us or math.inf for measure in correct)
    return noise.margins(policies, bottleneck(correct[0].problem, device, us, held_by_clock(correct)), objective)
