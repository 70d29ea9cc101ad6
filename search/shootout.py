"""The last word: the finalists, the incumbent, cuBLAS and the best of cuBLASLt in the same long rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..cost_model.costs import CYCLES, MICROSECONDS, TIME, cost
from ..heuristics.journal import Measure
from ..heuristics.table import MARGIN
from ..measure.policy import FINAL, Policy
from ..space import Problem, Schedule
from .runner import OnMeasure, Runner

SHORT_FINAL = replace(
    FINAL, name="final-short", slot_ms=2.0, limited_slot_ms=10.0, rounds=15, race_rounds=5, finalists=2
)
BRIEF_FINAL = replace(SHORT_FINAL, name="final-brief", rounds=7, race_rounds=3, check_seeds=1)
FINALS = (FINAL, SHORT_FINAL, BRIEF_FINAL)
"""How the last word may be spoken, the most careful first. Slots of 10 ms still give a kernel a power state of its
own; fewer rounds tell times apart that differ by 1 % or more."""

_ALGORITHMS = 8
"""What cuBLASLt offers for most problems."""

_OPENING_S = 0.6
_OPENING_CALLS = 40
"""Operands, references and checks of a problem, about: fixed, and in calls of the kernel, for the exact product is
in single precision."""

_LOOKING_MS = 1.0
"""The host between two slots that it watches one by one."""


def final_seconds(policy: Policy, limited: bool, call_us: float, contestants: int) -> float:
    """About how long a final takes of a problem on which one call takes `call_us`; `limited`: by power."""
    slot = policy.limited_slot_ms if limited else policy.slot_ms
    each = max(slot, call_us / 1e3) + max(policy.spacer_ms, call_us / 1e3) + _LOOKING_MS
    slots = policy.race_rounds * _ALGORITHMS + policy.rounds * (1 + policy.finalists + contestants)
    return _OPENING_S + _OPENING_CALLS * call_us / 1e6 + slots * each / 1e3


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
