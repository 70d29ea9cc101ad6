"""The ranker without scikit-learn: its trees from plain JSON, evaluated in pure Python for queries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..space import BadInput, Device, Problem, Schedule
from .analytic import Constants, Terms, analyse, floor_us
from .features import FEATURES, features

PREDICTOR_VERSION = 1

HOPELESS = 1.3
"""Schedules that the analytic model puts this far behind its best are ranked by it alone."""

LEAF = -1

LARGEST_LOG = 100.0
"""Most by which members and bias may move the logarithm of a time: they are corrections, mostly below one."""

Node = tuple[int, float, int, int]
"""(feature, threshold, left, right): left when the feature is at most the threshold. At a leaf the feature is
`LEAF` and the threshold is the leaf's value."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """An ensemble of boosted trees that corrects the logarithm of the analytic estimate."""

    members: tuple[tuple[float, tuple[tuple[Node, ...], ...]], ...]
    """Each: a first guess, and the trees that are added to it."""
    bias: float
    """Logarithm of measured over corrected time on the typical training problem."""
    constants: Constants
    """Those of the analytic model when the ranker was trained."""

    @classmethod
    def from_json(cls, obj: Mapping[str, Any], device: Device) -> Predictor:
        """The inverse of `Ranker.to_json`, for queries about `device`.

        Raises:
            BadInput: the object is of another version or with other features, or is not such an object, or its numbers
                are none that a query could go by.
        """
        try:
            if obj["version"] != PREDICTOR_VERSION or tuple(obj["features"]) != FEATURES:
                missing = [name for name in FEATURES if name not in obj["features"]]
                raise BadInput(
                    f"predictor of version {obj['version']} with {len(obj['features'])} features,"
                    f" {len(missing)} of this tileseek's missing{', such as ' * bool(missing)}{', '.join(missing[:3])}:"
                    f" valid is version {PREDICTOR_VERSION} with its {len(FEATURES)} features"
                )
            members = tuple(
                (float(member["first"]), tuple(_tree(tree) for tree in member["trees"])) for member in obj["members"]
            )
            if not members:
                raise BadInput("predictor has no members: valid is one or more")
            bias = float(obj["bias"])
            for number in (bias, *map(_reach, members)):
                if not abs(number) <= LARGEST_LOG:
                    raise BadInput(f"predictor moves times by e^{number:g}: valid is at most e^{LARGEST_LOG:g}")
            return cls(members, bias, Constants.from_json(obj["constants"], device))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"predictor cannot be read: {error!r}") from error

    def scores(self, problem: Problem, schedules: Sequence[Schedule], device: Device) -> list[float]:
        """Logarithms of the expected times, up to a constant of the problem: smaller is better."""
        floor = floor_us(problem, device, self.constants)
        terms = (analyse(problem, s, device, self.constants) for s in schedules)
        return [self._score(problem, s, device, t, floor) for s, t in zip(schedules, terms, strict=True)]

    def _score(self, problem: Problem, schedule: Schedule, device: Device, terms: Terms, floor: float) -> float:
        x = features(problem, schedule, device, terms, floor)
        total = 0.0
        for member, trees in self.members:
            for tree in trees:
                feature, threshold, left, right = tree[0]
                while feature != LEAF:
                    feature, threshold, left, right = tree[left if x[feature] <= threshold else right]
                member += threshold
            total += member
        return math.log(terms.total_us) + total / len(self.members)

    def expected_us(self, problem: Problem, schedule: Schedule, device: Device) -> float:
        """Expected time of one call in microseconds."""
        return math.exp(self.scores(problem, [schedule], device)[0] + self.bias)

    def rank(self, problem: Problem, schedules: Sequence[Schedule], device: Device) -> list[Schedule]:
        """The schedules, which must be valid, best first."""
        return [s for _, _, s in self._ordered(problem, schedules, device)]

    def best(self, problem: Problem, schedules: Sequence[Schedule], device: Device) -> tuple[Schedule, float]:
        """The first of the ranking of one or more schedules, and its expected time in microseconds."""
        _, score, schedule = self._ordered(problem, schedules, device)[0]
        return schedule, math.exp(score + self.bias)

    def _ordered(
        self, problem: Problem, schedules: Sequence[Schedule], device: Device
    ) -> list[tuple[bool, float, Schedule]]:
        """Whether the analytic model alone ranks a schedule, its score, and the schedule; best first."""
        floor = floor_us(problem, device, self.constants)
        terms = {s: analyse(problem, s, device, self.constants) for s in schedules}
        limit = HOPELESS * min((t.total_us for t in terms.values()), default=0.0)
        return sorted(
            (True, math.log(t.total_us), s)
            if t.total_us > limit
            else (False, self._score(problem, s, device, t, floor), s)
            for s, t in terms.items()
        )


def _tree(nodes: Sequence[Sequence[Any]]) -> tuple[Node, ...]:
    """The nodes of a tree, the root first and children after their parents, so that every walk ends."""
    found = []
    for i, (feature, threshold, left, right) in enumerate(nodes):
        node = int(feature), float(threshold), int(left), int(right)
        known = 0 <= node[0] < len(FEATURES) and i < node[2] < len(nodes) and i < node[3] < len(nodes)
        if not (math.isfinite(node[1]) and (known or node[0] == LEAF)):
            raise BadInput(f"node {i} of a tree is {node}: valid is a leaf, or a known feature and later nodes")
        found.append(node)
    if not found:
        raise BadInput("a tree has no nodes: valid is one or more")
    return tuple(found)


def _reach(member: tuple[float, Sequence[Sequence[Node]]]) -> float:
    """The largest absolute value that a member can come to."""
    first, trees = member
    return abs(first) + sum(max(abs(node[1]) for node in tree if node[0] == LEAF) for tree in trees)
