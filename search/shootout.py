"""The last word: the finalists, the incumbent, cuBLAS and the best of cuBLASLt in the same long rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..cost_model.costs import CYCLES, MICROSECONDS, TIME, cost
from ..heuristics.journal import Measure
from ..heuristics.table import MARGIN
from ..measure.policy import FINAL, Policy
from ..space import Problem, Schedule
from .runner import OnMeasure, Runner


def shootout(
    runner: Runner,
    problem: Problem,
    finalists: Sequence[Schedule],
    incumbent: Schedule | None,
    on_measure: OnMeasure,
    policy: Policy = FINAL,
) -> Measure | None:
    """The measure of the winner by time; None when no finalist was correct."""
    entrants = list(dict.fromkeys([*finalists, *([incumbent] if incumbent else [])]))
    return decide(runner.measure(problem, entrants, policy, on_measure), incumbent)


def decide(measures: Sequence[Measure], incumbent: Schedule | None = None) -> Measure | None:
    """The winner among measures of the same rounds.

    Who is within MARGIN of the fastest ties with it. A tie goes to the incumbent, then to the fewest cycles (which
    scatter less than time), then to the name: two runs that measure the same decide the same.
    """
    correct = [m for m in measures if m.status == "correct"]
    stick = TIME if all(m.ratio_to_ref is not None for m in correct) else MICROSECONDS
    timed = [(value, m) for m in correct if (value := cost(m, stick)) is not None]
    if not timed:
        return None
    fastest = min(value for value, _ in timed)
    tied = [m for value, m in timed if value <= fastest * (1 + MARGIN)]

    def order(m: Measure) -> tuple[bool, float, str]:
        cycles = cost(m, CYCLES)
        return m.schedule != incumbent, math.inf if cycles is None else cycles, m.schedule.name

    return min(tied, key=order)
