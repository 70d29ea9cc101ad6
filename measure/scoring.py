"""From samples to a result: medians, paired ratios, plausibility. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from statistics import mean, median
from typing import Any, Protocol

from ..space import POWER_LIMITED_MHZ, Device, Problem
from .conditions import steady
from .results import CORRECT, Candidate, Result
from .roofline import floor_us
from .stats import Estimate, estimate, paired


class Measured(Protocol):
    """One slot: microseconds of one call, effective MHz, and the state of the board (timing.Sample)."""

    @property
    def us(self) -> float: ...
    @property
    def mhz(self) -> float: ...
    @property
    def power_w(self) -> float: ...
    @property
    def temperature_c(self) -> int: ...
    @property
    def throttle(self) -> int: ...


Samples = Sequence[Measured | None]
"""One for each round, the same rounds for all contenders; None where one sat out."""


@dataclass(frozen=True, slots=True)
class Field:
    """The references that ran in the same rounds, and what holds for the whole problem.

    `samples` begins with cuBLAS's default, under its name.
    """

    problem: Problem
    device: Device
    samples: Mapping[str, Samples]
    slot_ms: float
    energies: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Millijoules of a call of each, one for each pass; empty where energy is not counted."""

    @property
    def default(self) -> str:
        """The name of cuBLAS's default."""
        return next(iter(self.samples))

    @property
    def best(self) -> str:
        """The name of the fastest reference by median time."""
        return min(self.samples, key=lambda name: _median_us(self.samples[name]))

    @property
    def power_limited(self) -> bool:
        """Whether cuBLAS's default ran at a clock held down by power."""
        return 0 < _clock(self.samples[self.default]) < POWER_LIMITED_MHZ


def score(
    field: Field,
    candidate: Candidate,
    smem: int,
    check: Mapping[str, Any],
    samples: Samples,
    energies: Sequence[float] = (),
) -> Result:
    """The result of a candidate whose output was right, from its samples and those of the references.

    Samples taken under changed conditions count on neither side. A median below what the hardware allows makes it
    `implausible`: something was measured, but not this product.
    """
    own = steady(samples)
    default, best = steady(field.samples[field.default]), steady(field.samples[field.best])
    ratios = {
        "ratio_to_ref": _ratio(default, own, _us),
        "ratio_to_best": _ratio(best, own, _us),
        "ratio_cycles": _ratio(default, own, _cycles),
        "ratio_cycles_best": _ratio(best, own, _cycles),
    }
    taken = [sample for sample in own if sample is not None]
    intervals = {**ratios, "median_us": estimate([sample.us for sample in taken])}
    median_us = _median_us(own)
    floor = floor_us(field.problem, field.device)
    plausible = median_us >= floor
    return Result(
        schedule=candidate.schedule,
        status=CORRECT if plausible else "implausible",
        reason="" if plausible else f"{median_us:.3f} us, where the hardware needs {floor:.3f}",
        regs=candidate.regs,
        smem=smem,
        check=check,
        times_us=tuple(sample.us for sample in taken),
        clocks_mhz=tuple(sample.mhz for sample in taken),
        rounds=tuple(index for index, sample in enumerate(own) if sample is not None),
        median_us=median_us,
        median_cycles=median([_cycles(sample) for sample in taken]),
        **{name: value.median for name, value in ratios.items()},
        ci95={name: (value.low, value.high) for name, value in intervals.items()},
        ref=field.default,
        ref_us=_median_us(default),
        best=field.best,
        best_us=_median_us(best),
        clock_mhz=_clock(own),
        power_w=mean([sample.power_w for sample in taken]),
        temperature_c=max(sample.temperature_c for sample in taken),
        throttle=reduce(or_, (sample.throttle for sample in taken)),
        power_limited=field.power_limited,
        slot_ms=field.slot_ms,
        discarded=sum(sample is not None for sample in samples) - len(taken),
        energy_mj=median(energies) if energies else 0.0,
        ratio_energy=median(paired(field.energies[field.default], energies)) if energies else 0.0,
    )


def _ratio(reference: Samples, own: Samples, measure: Any) -> Estimate:
    def values(samples: Samples) -> list[float | None]:
        return [None if sample is None else measure(sample) for sample in samples]

    pairs = paired(values(reference), values(own))
    return estimate(pairs) if pairs else Estimate(0.0, 0.0, 0.0)


def _us(sample: Measured) -> float:
    return sample.us


def _cycles(sample: Measured) -> float:
    return sample.us * sample.mhz


def _median_us(samples: Samples) -> float:
    return median([sample.us for sample in samples if sample is not None])


def _clock(samples: Samples) -> float:
    return mean([sample.mhz for sample in samples if sample is not None])
