"""Ways to choose what to measure next on one problem, behind one interface: what the tuner is compared with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Protocol

from ..space import Schedule
from .sampler import Sampler
from .spaces import SearchSpace

_TRIES = 8
"""Suggestions in a row that may be known already before a sampler counts as out of ideas."""


class Strategy(Protocol):
    """Proposes schedules of one problem and learns what they cost."""

    def propose(self, count: int) -> list[Schedule]:
        """At most `count` schedules that were never proposed before; none when there are no more."""

    def tell(self, outcomes: Mapping[Schedule, float | None]) -> None:
        """What schedules cost; None for one that failed."""


class InOrder:
    """Schedules in an order fixed beforehand: a draft, a ranking, another tool's list."""

    def __init__(self, schedules: Iterable[Schedule]) -> None:
        self._schedules = list(dict.fromkeys(schedules))
        self._next = 0

    def propose(self, count: int) -> list[Schedule]:
        batch = self._schedules[self._next : self._next + count]
        self._next += len(batch)
        return batch

    def tell(self, outcomes: Mapping[Schedule, float | None]) -> None:
        del outcomes


class Sampled:
    """One of Optuna's samplers alone; where it only repeats itself, chance."""

    def __init__(self, space: SearchSpace, sampler: str, seed: int) -> None:
        self._space = space
        self._sampler = Sampler(space, sampler, seed)
        self._rng = random.Random(seed)
        self._seen: set[Schedule] = set()

    def propose(self, count: int) -> list[Schedule]:
        batch: list[Schedule] = []
        tries = 0
        while len(batch) < count and len(self._seen) < self._space.size:
            tries += 1
            schedule = self._sampler.ask(1)[0] if tries <= _TRIES else self._space.sample(self._rng)
            if schedule not in self._seen:
                self._seen.add(schedule)
                batch.append(schedule)
                tries = 0
        return batch

    def tell(self, outcomes: Mapping[Schedule, float | None]) -> None:
        self._sampler.tell(outcomes)
