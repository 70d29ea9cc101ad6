"""Medians, paired ratios and their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its 95 % interval."""

    median: float
    low: float
    high: float


def estimate(values: Sequence[float]) -> Estimate:
    """The median of `values` and its interval from order statistics: no assumption about their distribution.

    With fewer than six values no such interval reaches 95 %, and it is the whole range (94 % for five).

    Raises:
        ValueError: there are no values.
    """
    ordered = sorted(values)
    rank = interval_rank(len(ordered))
    return Estimate(median(ordered), ordered[rank], ordered[-1 - rank])


def interval_rank(count: int) -> int:
    """The largest r for which the median lies between the r-th smallest and r-th largest (counted from 0) of `count`
    values with 95 % probability; 0 when no r does. Binomial(count, 1/2) tails."""
    outside = 0.0
    for rank in range(count // 2):
        outside += 2 * math.comb(count, rank) / 2**count
        if outside > 0.05:
            return max(0, rank - 1)
    return max(0, count // 2 - 1)


def paired(reference: Sequence[float | None], own: Sequence[float | None]) -> list[float]:
    """reference / own of every round that has both."""
    return [r / o for r, o in zip(reference, own, strict=True) if r is not None and o is not None and o > 0]


def geomean(values: Sequence[float]) -> float:
    """The geometric mean of positive values; 0 of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 0.0
