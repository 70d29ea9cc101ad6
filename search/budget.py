"""One budget over many problems, spent where the gain is expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..space import BadInput

ALPHA = 0.2
WINDOW = 3
"""Weight of the gain of the last batches against hope, and how many batches (MetaSchedule's gradient rule)."""

HOPE = 0.1
"""Gain that one more batch after the first may still bring, in logarithm of the cost."""

_FIRST_GUESS_S = 0.2
"""Seconds a measurement takes, before any was made."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent on all problems together.

    A measurement is one schedule tried on one problem, whatever comes of it; those a journal already holds count.
    The final comparison of the best few measures nothing new and counts in seconds only.

    Raises:
        BadInput: neither limit is given, or one is not positive.
    """

    measurements: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.measurements is None and self.seconds is None:
            raise BadInput("the budget has no limit: valid is a number of measurements, of seconds, or both")
        for name in ("measurements", "seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadInput(f"the budget is {value} {name}: valid is a positive number")


class Meter:
    """What is left of a budget. `now` is the clock in seconds; `spent` measurements were made before."""

    def __init__(self, budget: Budget, now: Callable[[], float], spent: int = 0) -> None:
        self._budget = budget
        self._now = now
        self._started = now()
        self._before = spent
        self._spent = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the meter was made."""
        return self._now() - self._started

    @property
    def spent(self) -> int:
        """Measurements made since."""
        return self._spent

    @property
    def time_left(self) -> bool:
        """Whether the budget has seconds left, or no such limit."""
        return self._budget.seconds is None or self.elapsed_s < self._budget.seconds

    def count(self, measurements: int) -> None:
        """Note that measurements were made."""
        self._spent += measurements

    def affordable(self, wanted: int, share: float = 1.0, planned: int = 0) -> int:
        """How many of `wanted` measurements a `share` of the budget's seconds and all of its measurements still pay
        for, after `planned` others."""
        if self._budget.measurements is not None:
            wanted = min(wanted, self._budget.measurements - self._before - self._spent - planned)
        if self._budget.seconds is not None:
            each = self.elapsed_s / self._spent if self._spent else _FIRST_GUESS_S
            left = self._budget.seconds * share - self.elapsed_s - planned * each
            wanted = min(wanted, math.ceil(left / each)) if left > 0 else 0
        return max(0, wanted)


def gain(curve: Sequence[float | None], weight: float = 1.0) -> float:
    """The gain to expect of one more batch, after batches that left the best cost at `curve`.

    None stands for no success yet. Costs are compared by their ratio, so that small problems count like large
    ones. A problem that has failed so far keeps its hope, and gets its turns by that.
    """
    if not curve:
        return math.inf
    hope = (1 - ALPHA) * HOPE / len(curve)
    known = [math.log(cost) for cost in curve if cost is not None]
    window = min(WINDOW, len(known) - 1)
    won = (known[-1 - window] - known[-1]) / window if window > 0 else 0.0
    return weight * (ALPHA * won + hope)
