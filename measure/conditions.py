"""Samples taken while something else than the candidate changed the card: found, left out, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Protocol, TypeVar

from ..space import POWER_LIMITED_MHZ

BRAKES = 0x08 | 0x20 | 0x40 | 0x80
"""NVML's clock event reasons that no kernel is to blame for: hardware slowdown, software and hardware thermal slowdown,
power brake (nvml.h, nvmlClocksEventReason...). The power cap, 0x04, is the usual state under large products."""

SHIFT = 0.05
"""A clock that far from the contestant's usual one, where power does not limit it, is another state of the card: it
stays within 1 % there. Where power limits, the clock hunts by 10 % and rounds are paired instead."""

LEAST_SHARE = 0.5
"""Samples that have to remain. A card that is hot all the time is measured hot, and the result says so."""


class Conditions(Protocol):
    """The part of a sample that tells the state of the card."""

    @property
    def mhz(self) -> float: ...
    @property
    def throttle(self) -> int: ...


S = TypeVar("S", bound=Conditions)


def steady(samples: Sequence[S | None]) -> list[S | None]:
    """The samples of one contestant, None in the place of those taken under changed conditions; all of them where too
    few would be left."""
    taken = [sample for sample in samples if sample is not None]
    if not taken:
        return list(samples)
    usual = median(sample.mhz for sample in taken)
    allowed = SHIFT if usual >= POWER_LIMITED_MHZ else 1.0

    def disturbed(sample: S) -> bool:
        return bool(sample.throttle & BRAKES) or abs(sample.mhz / usual - 1) > allowed

    kept = [None if sample is None or disturbed(sample) else sample for sample in samples]
    return kept if sum(sample is not None for sample in kept) >= LEAST_SHARE * len(taken) else list(samples)
