"""Where a search may go: the whole valid space of a problem, or the schedules that a journal has measured on it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..cost_model.analytic import estimate_us
from ..cost_model.draft import draft, spread
from ..space import DIMENSIONS, Device, Problem, Schedule, enumerate_schedules, nearest, neighbours, sample

WALK = ("raster", "swizzle", "serpentine")
"""Launch dimensions that a polish sweeps: they compile nothing."""

DRAFTED = 128
"""Schedules of the whole space that the draft puts before a ranker."""

_MISMATCH = 1.0
"""Distance of two words, in natural logarithms of the ratio of two numbers."""

_NEAR = 32
"""Listed schedules that count as neighbours."""


class SearchSpace(Protocol):
    """What a search can do with the space of one problem."""

    problem: Problem
    size: float
    """How many schedules there are; infinite where nobody counts them."""

    def draft(self, count: int, seed: int) -> list[Schedule]:
        """The best by the analytic model, best first, diverse."""

    def pool(self, seed: int) -> list[Schedule]:
        """What a ranker may choose from, in the order of the analytic model."""

    def project(self, wish: Mapping[str, Any]) -> Schedule:
        """The schedule nearest to values that need not be valid together."""

    def sample(self, rng: random.Random) -> Schedule:
        """A random schedule."""

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        """Those close to a schedule."""

    def walks(self, schedule: Schedule) -> list[Schedule]:
        """The same kernel walking over the tiles in other orders."""


class WholeSpace:
    """Every valid schedule: for measuring on a GPU."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self.problem = problem
        self.size = math.inf
        self._device = device

    def draft(self, count: int, seed: int) -> list[Schedule]:
        return draft(self.problem, self._device, count, seed)

    def pool(self, seed: int) -> list[Schedule]:
        return self.draft(DRAFTED, seed)

    def project(self, wish: Mapping[str, Any]) -> Schedule:
        return nearest(wish, self.problem, self._device)

    def sample(self, rng: random.Random) -> Schedule:
        return sample(self.problem, self._device, rng)

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        return neighbours(schedule, self.problem, self._device)

    def walks(self, schedule: Schedule) -> list[Schedule]:
        return [s for s in enumerate_schedules(self.problem, self._device, schedule, WALK) if s != schedule]


class ListedSpace:
    """A list of schedules: for replaying a journal, where nothing else has a time."""

    def __init__(self, problem: Problem, device: Device, schedules: Iterable[Schedule]) -> None:
        self.problem = problem
        self._device = device
        self._schedules = sorted(set(schedules))
        self.size = float(len(self._schedules))
        self._numbers = np.array([_numbers(s.to_json()) for s in self._schedules])
        self._words = np.array([_words(s.to_json()) for s in self._schedules])

    def draft(self, count: int, seed: int) -> list[Schedule]:
        del seed
        timed = sorted((estimate_us(self.problem, s, self._device), s) for s in self._schedules)
        return spread(timed)[:count]

    def pool(self, seed: int) -> list[Schedule]:
        del seed
        return sorted(self._schedules, key=lambda s: (estimate_us(self.problem, s, self._device), s))

    def project(self, wish: Mapping[str, Any]) -> Schedule:
        return self._schedules[int(self._distances(wish).argmin())]

    def sample(self, rng: random.Random) -> Schedule:
        return rng.choice(self._schedules)

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        order = self._distances(schedule.to_json()).argsort(kind="stable")[: _NEAR + 1]
        return [s for s in (self._schedules[i] for i in order) if s != schedule]

    def walks(self, schedule: Schedule) -> list[Schedule]:
        return [s for s in self._schedules if s != schedule and s.kernel == schedule.kernel]

    def _distances(self, values: Mapping[str, Any]) -> NDArray[np.float64]:
        numbers = np.abs(self._numbers - np.array(_numbers(values))).sum(axis=1)
        words = (self._words != np.array(_words(values))).sum(axis=1)
        found: NDArray[np.float64] = numbers + _MISMATCH * words
        return found


_WORDS = tuple(field.name for field in fields(Schedule) if field.type == "str")


def _numbers(values: Mapping[str, Any]) -> list[float]:
    return [math.log(values[name] + 0.5) for name in DIMENSIONS if name not in _WORDS]


def _words(values: Mapping[str, Any]) -> list[str]:
    return [values[name] for name in _WORDS]
