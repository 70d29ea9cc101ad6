"""One number by which measured schedules of a problem compare: smaller is better, all by the same yardstick."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ..space import FOR_ENERGY, FOR_TIME, POWER_LIMITED_MHZ, Problem, Schedule, follows_clock

CYCLES = "ratio_cycles"
TIME = "ratio_to_ref"
ENERGY = "ratio_energy"
EDP = "ratio_edp"
MICROSECONDS = "median_us"
"""Yardsticks: attributes of a measure. All but the last are ratios to cuBLAS's default, which ran beside it."""


class Measured(Protocol):
    """A journal's measure."""

    @property
    def problem(self) -> Problem: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def status(self) -> str: ...
    @property
    def median_us(self) -> float | None: ...
    @property
    def ratio_to_ref(self) -> float | None: ...
    @property
    def ratio_cycles(self) -> float | None: ...
    @property
    def ratio_energy(self) -> float | None: ...
    @property
    def ratio_edp(self) -> float | None: ...
    @property
    def raw(self) -> Mapping[str, Any]: ...


M = TypeVar("M", bound=Measured)


def yardstick(measures: Iterable[Measured], objective: str = FOR_TIME) -> str:
    """What to compare the measures of one problem by: the name of an attribute.

    Ratios to a reference that ran in the same rounds agree from run to run better than times do; of cycles where power
    limits the clock and the problem follows it. For time it is one that every correct measure has; for another
    objective, measures without their energy have no cost.
    """
    if objective != FOR_TIME:
        return ENERGY if objective == FOR_ENERGY else EDP
    correct = [m for m in measures if m.status == "correct"]
    by_clock = held_by_clock(correct)
    for name in (CYCLES, TIME) if by_clock else (TIME,):
        if correct and all(getattr(m, name) is not None for m in correct):
            return name
    return MICROSECONDS


def cost(measure: Measured, stick: str) -> float | None:
    """The cost of one measure by a yardstick; None when it has none."""
    value = getattr(measure, stick)
    if measure.status != "correct" or value is None:
        return None
    return float(value if stick == MICROSECONDS else 1 / value)


def costs(measures: Sequence[Measured], objective: str = FOR_TIME) -> dict[Schedule, float]:
    """The cost of every correct schedule of one problem, the median where one was measured several times."""
    stick = yardstick(measures, objective)
    found: dict[Schedule, list[float]] = {}
    for measure in measures:
        value = cost(measure, stick)
        if value is not None:
            found.setdefault(measure.schedule, []).append(value)
    return {schedule: statistics.median(values) for schedule, values in found.items()}


def by_problem(measures: Iterable[M]) -> dict[Problem, list[M]]:
    """The measures of each problem, in order."""
    groups: dict[Problem, list[M]] = {}
    for measure in measures:
        groups.setdefault(measure.problem, []).append(measure)
    return groups


def held_by_clock(measures: Sequence[Measured]) -> bool:
    """Whether the clock decides the times of measures on one problem: power held it down, and the problem follows."""
    limited = sum(map(power_limited, measures)) * 2 > len(measures)
    return limited and follows_clock(measures[0].problem)


def power_limited(measure: Measured) -> bool:
    """Whether power held cuBLAS back while it was made."""
    flag = measure.raw.get("power_limited")
    if isinstance(flag, bool):
        return flag
    clock = measure.raw.get("clock_mhz")
    return isinstance(clock, int | float) and 0 < clock < POWER_LIMITED_MHZ
