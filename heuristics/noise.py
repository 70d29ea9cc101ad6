"""What measuring resolves: how far two results of one and the same schedule lie apart."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..cost_model.costs import power_limited
from ..space import FOR_EDP, FOR_ENERGY, FOR_TIME, BadInput, Schedule
from .journal import Measure, policy_family, policy_name
from .pooling import shootout_of

NOISE_VERSION = 1

QUANTITIES = {"time": "ratio_to_ref", "cycles": "ratio_cycles", "energy": "ratio_energy"}
"""What is compared, and the paired ratio of a result that shows it."""

UNMEASURED = {"time": 0.005, "cycles": 0.002, "energy": 0.01}
"""Margins of a policy whose noise was not measured: what its rounds tell apart where power limits the clock."""

SIGMAS = 3.0
"""Differences of so many standard deviations are resolved: equal schedules exceed them once in several hundred."""


@dataclass(frozen=True, slots=True)
class Margins:
    """Relative differences below which two schedules are not told apart: of what is tuned for, and of cycles."""

    cost: float
    cycles: float


@dataclass(frozen=True, slots=True)
class Noise:
    """The smallest relative differences that a card resolves."""

    resolvable: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """By name of the policy, bottleneck of the problem, and quantity."""

    def margin(self, policy: str, bottleneck: str, quantity: str) -> float:
        """The smallest difference of a quantity that the policy of this key resolves.

        A policy that was not measured resolves what the coarsest of its family does (`final-short` is one of `final`).
        All finals count energy alike, so that what was measured of one holds for the others.
        """
        name = policy_name(policy)
        measured = {
            other: kinds[bottleneck][quantity]
            for other, kinds in self.resolvable.items()
            if quantity in kinds.get(bottleneck, {})
        }
        if name in measured:
            return measured[name]
        family = [value for other, value in measured.items() if policy_family(other) == policy_family(name)]
        if not family and quantity == "energy":
            family = list(measured.values())
        return max(family, default=UNMEASURED[quantity])

    def margins(self, policies: Iterable[str], bottleneck: str, objective: str = FOR_TIME) -> Margins:
        """The margins for a choice among results of these policies: the widest counts."""
        policies = set(policies)
        time, cycles, energy = (
            max(self.margin(policy, bottleneck, quantity) for policy in policies) for quantity in QUANTITIES
        )
        return Margins({FOR_TIME: time, FOR_ENERGY: energy, FOR_EDP: time + energy}[objective], cycles)


def read_noise(path: str | Path) -> Noise:
    """The noise in a file that `tileseek noise` wrote.

    Raises:
        BadInput: the file cannot be read, or is no such document.
    """
    with _document(path) as obj:
        return _noise(obj)


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a document that `tileseek noise` wrote, each with the document's date.

    Raises:
        BadInput: the file cannot be read, or is no such document.
    """
    with _document(path) as obj:
        _noise(obj)
        return [{"date": str(obj["date"]), **_row(row)} for row in obj["rows"]]


@contextmanager
def _document(path: str | Path) -> Iterator[Any]:
    """The document in a file, and the one way in which whatever is wrong with it is told."""
    try:
        obj = json.loads(Path(path).read_bytes())
        if obj["v"] != NOISE_VERSION:
            raise ValueError(f"version {obj['v']!r}, valid is {NOISE_VERSION}")
        yield obj
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise BadInput(f"{path} is no document of `tileseek noise`: {error}") from error


def _noise(obj: Any) -> Noise:
    return Noise(
        {
            policy: {
                bottleneck: {quantity: _share(value) for quantity, value in quantities.items()}
                for bottleneck, quantities in kinds.items()
            }
            for policy, kinds in obj["resolvable"].items()
        }
    )


def _row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row, if it has what is pooled and printed."""
    for name in ("name", "policy", "policy_name", "bottleneck"):
        if not isinstance(row[name], str):
            raise TypeError(f"{name} is {row[name]!r}, valid is a word")
    for quantity, spread in row["scatter"].items():
        if quantity not in QUANTITIES:
            raise ValueError(f"quantity is {quantity!r}, valid are {', '.join(QUANTITIES)}")
        for name in ("within", "between", "largest"):
            _share(spread[name])
        _share(SIGMAS * spread["within"])
        if isinstance(spread["pairs"], bool) or not isinstance(spread["pairs"], int) or not 0 < spread["pairs"] < 2**31:
            raise ValueError(f"pairs is {spread['pairs']!r}, valid is 1 to 2^31 - 1")
    return row


def scatter(calls: Sequence[Sequence[float]]) -> dict[str, float | int]:
    """How the ratios of equal schedules differ: `calls` has one list for each call, with one ratio for each copy.

    `within` compares copies of one call, which ran in the same rounds; `between` results of different calls. Both are
    the root mean square of relative differences; `largest` is the largest of the first kind, of `pairs`.
    """
    within = [math.log(a / b) for call in calls for a, b in itertools.combinations(call, 2)]
    between = [
        math.log(a / b) for one, other in itertools.combinations(calls, 2) for a, b in itertools.product(one, other)
    ]
    return {
        "within": _rms(within),
        "between": _rms(between),
        "largest": max(map(abs, within), default=0.0),
        "pairs": len(within),
    }


@dataclass(frozen=True, slots=True)
class Repeats:
    """Whether a difference that finals see between two schedules is there again in other finals."""

    pairs: int
    """Pairs of finals in which the same two schedules met."""
    correlation: float
    """Of the difference in one final with that in the other: 1 where it is the schedules', 0 where it is chance."""
    difference: float
    """Root mean square of the differences of logarithms."""


def clock_repeats(finals: Iterable[Measure]) -> Repeats | None:
    """How far the clocks that schedules get where power limits are their own: clocks beside that of cuBLAS in the same
    rounds, which is the ratio of times over that of cycles. None where no two schedules met twice."""
    races: dict[tuple[Any, ...], dict[Schedule, float]] = defaultdict(dict)
    for m in finals:
        if power_limited(m) and m.ratio_to_ref and m.ratio_cycles:
            races[m.problem, *shootout_of(m)][m.schedule] = math.log(m.ratio_to_ref / m.ratio_cycles)
    met: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for (problem, *_), clocks in races.items():
        for one, other in itertools.combinations(sorted(clocks), 2):
            met[problem, one, other].append(clocks[one] - clocks[other])
    twice = [pair for differences in met.values() for pair in itertools.combinations(differences, 2)]
    squares = sum(a * a + b * b for a, b in twice) / 2
    if not squares:
        return None
    return Repeats(len(twice), sum(a * b for a, b in twice) / squares, math.sqrt(squares / len(twice)))


def resolvable(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """The `resolvable` object of a document, from its rows: what several say of one problem is pooled, and of all
    problems of a kind the noisiest counts."""
    pooled: dict[tuple[str, str, str, str], list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        for quantity, spread in row["scatter"].items():
            key = (row["policy_name"], row["bottleneck"], quantity, row["name"])
            pooled[key].append((spread["pairs"], spread["within"]))
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (policy, bottleneck, quantity, _), spreads in pooled.items():
        margins = found.setdefault(policy, {}).setdefault(bottleneck, {})
        within = math.sqrt(sum(pairs * rms**2 for pairs, rms in spreads) / sum(pairs for pairs, _ in spreads))
        margins[quantity] = max(margins.get(quantity, 0.0), round(SIGMAS * within, 5))
    return found


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values)) if values else 0.0


def _share(value: Any) -> float:
    share = float(value)
    if not 0 <= share < 1:
        raise ValueError(f"{value!r} is not a share")
    return share
