"""What to try next on one problem: the draft, an Optuna sampler, the neighbourhood of the best, and chance.

Everything happens in one fixed order, so that the same seed and the same measures give the same proposals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest

from ..cost_model.draft import spread
from ..space import Schedule
from .polish import refinements
from .sampler import Sampler
from .spaces import SearchSpace

Score = Callable[[Sequence[Schedule]], Sequence[float]]
"""Logarithms of the times expected of schedules, up to a constant: by the learned ranker, or the analytic model."""

SEEDS = 16
"""Proposed from the draft and from other problems before the measures have a say."""

EXPLORING = 0.1
POLISHING = 0.5
"""Shares of a batch: chance, as insurance against what the models do not see; the neighbourhood of the best.
The rest is the sampler's and the draft's."""

NOVEL = 2
"""Best schedules known beforehand whose neighbours are looked at for choices never tried."""

_TRIES = 64
"""Random draws in a row that may be known already before a space counts as exhausted."""


class Proposer:
    """Proposes schedules for one problem and learns what they cost.

    `transfers` are schedules that are good on other problems. What is known of this one is told like anything else.
    """

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        transfers: Iterable[Schedule] = (),
        sampler: str = "tpe",
    ) -> None:
        self._space = space
        self._rng = random.Random(seed)
        self._seen: set[Schedule] = set()
        self._broken: set[Schedule] = set()
        self._costs: dict[Schedule, float] = {}
        self._transfers = list(transfers)
        self._projected: dict[Schedule, Schedule] = {}
        self._drafted: list[Schedule] | None = None
        self._seed = seed
        self._seeded = 0
        self._sampler = Sampler(space, sampler, seed)

    @property
    def exhausted(self) -> bool:
        """Whether everything there is has been proposed."""
        return len(self._seen) >= self._space.size

    @property
    def drafted(self) -> bool:
        """Whether the draft is made."""
        return self._drafted is not None

    def best(self, count: int) -> list[Schedule]:
        """The cheapest schedules known, cheapest first."""
        return sorted(self._costs, key=lambda s: (self._costs[s], s))[:count]

    def cost(self, schedule: Schedule) -> float:
        """What a schedule of `best` costs."""
        return self._costs[schedule]

    def add_transfers(self, schedules: Iterable[Schedule]) -> None:
        """Schedules that other problems turned out to like."""
        self._transfers += [s for s in schedules if s not in self._transfers]

    def tell(self, outcomes: Mapping[Schedule, float | None]) -> None:
        """What schedules cost, proposed here or not; None for one that failed."""
        self._seen |= outcomes.keys()
        self._costs.update((s, cost) for s, cost in outcomes.items() if cost is not None)
        self._sampler.tell(outcomes)

    def reject(self, kernel: Schedule) -> None:
        """Propose no schedule of this kernel again: it does not compile."""
        self._broken.add(kernel.kernel)

    def propose(self, count: int, score: Score) -> list[Schedule]:
        """At most `count` schedules that were never proposed before; fewer only when there are no more."""
        batch: list[Schedule] = []
        explored = max(1, round(EXPLORING * count)) if count > 1 else 0
        if self._seeded < SEEDS or not self._costs:
            self._seeded += self._take(self._start(score), count - explored, batch)
        else:
            polished = refinements(self._space, self.best(3), self._rng)
            self._take(_ordered(self._fresh(polished), score), round(POLISHING * count), batch)
            wanted = count - explored - len(batch)
            pool = self._fresh([*self._sampler.ask(wanted), *self.draft(), *self._moved()])
            self._take(_varied(pool, score), wanted, batch)
        self._take(self._chance(count - len(batch)), count - len(batch), batch)
        return batch

    def _take(self, schedules: Iterable[Schedule], most: int, batch: list[Schedule]) -> int:
        fresh = self._fresh(schedules)[: max(0, most)]
        self._seen |= set(fresh)
        batch += fresh
        return len(fresh)

    def _fresh(self, schedules: Iterable[Schedule]) -> list[Schedule]:
        return [s for s in dict.fromkeys(schedules) if s not in self._seen and s.kernel not in self._broken]

    def draft(self) -> list[Schedule]:
        """What the analytic model likes. The first call takes a few tenths of a second."""
        if self._drafted is None:
            self._drafted = self._space.pool(self._seed)
        return self._drafted

    def _start(self, score: Score) -> list[Schedule]:
        """What is new around the best known; then what the ranker likes of the draft and of what other problems like,
        and each third time the next of the latter, whatever it ranks."""
        moved = list(dict.fromkeys(self._moved()))
        ranked = _varied(list(dict.fromkeys([*moved, *self.draft()])), score)
        turns = zip_longest(ranked[::2], ranked[1::2], _ordered(moved, score))
        return [*self._novel(), *(s for turn in turns for s in turn if s is not None)]

    def _novel(self) -> list[Schedule]:
        """Neighbours of the best with a choice that nothing known of the problem has: one that is newer than those
        measures."""
        tried = {choice for s in self._costs for choice in s.to_json().items()}
        around = [s for schedule in self.best(NOVEL) for s in self._space.neighbours(schedule)]
        return [s for s in around if not tried.issuperset(s.to_json().items())]

    def _moved(self) -> list[Schedule]:
        for schedule in self._transfers:
            if schedule not in self._projected:
                self._projected[schedule] = self._space.project(schedule.to_json())
        return [self._projected[s] for s in self._transfers]

    def _chance(self, count: int) -> list[Schedule]:
        found: dict[Schedule, None] = {}
        misses = 0
        while len(found) < count and misses < _TRIES:
            schedule = self._space.sample(self._rng)
            if schedule in found or not self._fresh([schedule]):
                misses += 1
            else:
                misses = 0
                found[schedule] = None
        return list(found)


def _ordered(schedules: Sequence[Schedule], score: Score) -> list[Schedule]:
    """The schedules, those expected to be fastest first."""
    return [s for _, s in _timed(schedules, score)]


def _varied(schedules: Sequence[Schedule], score: Score) -> list[Schedule]:
    """The same with structures and tiles taking turns where they are close."""
    return spread(_timed(schedules, score))


def _timed(schedules: Sequence[Schedule], score: Score) -> list[tuple[float, Schedule]]:
    return sorted((math.exp(value), s) for value, s in zip(score(schedules), schedules, strict=True))
