"""What several shoot-outs on one problem say together of the schedules that were in them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

from ..cost_model.costs import MICROSECONDS, cost
from ..space import Schedule
from .journal import Measure

STEPS = 100
"""Most improvements of the fit; with cuBLAS in every shoot-out a few are enough."""

CLOSE = 1e-6
"""Change of a logarithm with which the fit ends."""

_CUBLAS = "cuBLAS"

Observation = tuple[Hashable, Hashable, float]
"""An entrant, the shoot-out it was in, and the logarithm of its cost there."""


def shootout_of(measure: Measure) -> tuple[str, str, str]:
    """What measures on one problem share that were made in the same rounds: the time of cuBLAS tells them apart."""
    return measure.policy, str(measure.raw.get("gpu")), str(measure.raw.get("ref_us"))


def pooled_costs(measures: Iterable[Measure], stick: str) -> dict[Schedule, float]:
    """The cost of every schedule of one problem by a yardstick, from all the shoot-outs that it was in.

    Schedules that met in the same rounds compare to 0.1 %. But their costs are in cuBLAS's of those rounds, which
    comes out another by 1 % in other rounds, so that who was in few shoot-outs is cheap or dear by chance. So the
    logarithm of a cost is taken for the sum of what the schedule makes of it and what the shoot-out does, and the two
    are fitted by least squares, with cuBLAS as an entrant of cost 1 in each: one entrant's chance in one of them then
    weighs no more than another's. Of finals left out one by one, the best in them was missed by a quarter less than by
    medians. Microseconds, which stand for measures without cuBLAS, count by their medians.
    """
    costs: dict[Schedule, list[float]] = defaultdict(list)
    observed: list[Observation] = []
    for measure in measures:
        value = cost(measure, stick)
        if value is not None:
            costs[measure.schedule].append(value)
            observed.append((measure.schedule, shootout_of(measure), math.log(value)))
    if stick == MICROSECONDS:
        return {schedule: statistics.median(values) for schedule, values in costs.items()}
    shootouts = dict.fromkeys(shootout for _, shootout, _ in observed)
    of_entrant = fitted([*observed, *((_CUBLAS, shootout, 0.0) for shootout in shootouts)])
    return {schedule: math.exp(of_entrant[schedule] - of_entrant[_CUBLAS]) for schedule in costs}


def fitted(observed: Sequence[Observation]) -> Mapping[Hashable, float]:
    """What each entrant makes of the logarithms, up to a constant: means of what is left without the shoot-outs' part
    and without the entrants', in turn, which is the least squares of their sum."""
    entrants = dict.fromkeys((entrant for entrant, _, _ in observed), 0.0)
    for _ in range(STEPS):
        shootouts = _means((shootout, value - entrants[entrant]) for entrant, shootout, value in observed)
        better = _means((entrant, value - shootouts[shootout]) for entrant, shootout, value in observed)
        moved = max((abs(better[entrant] - before) for entrant, before in entrants.items()), default=0.0)
        entrants = better
        if moved < CLOSE:
            break
    return entrants


def _means(values: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for key, value in values:
        groups[key].append(value)
    return {key: statistics.fmean(group) for key, group in groups.items()}
