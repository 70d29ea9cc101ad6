"""The ranker without scikit-learn: its trees from plain JSON, evaluated in pure Python for queries."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..space import BadInput, Device, Problem, Schedule
from .analytic import Constants, Terms, analyse, floor_us
from .features import FEATURES, of_both, of_problem, of_schedule
from .forest import Forest, read_tree

PREDICTOR_VERSION = 1

HOPELESS = 1.3
"""Schedules that the analytic model puts this far behind its best are ranked by it alone."""

DOUBT = 1.0
"""Standard deviations of what members say by which a schedule ranks behind what they say on average: the first of
hundreds is else the one that they are most wrong about. On families held out that gains 0.3 % of the best."""

LARGEST_LOG = 100.0
"""Most by which members and bias may move the logarithm of a time: they are corrections, mostly below one."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """An ensemble of boosted trees that corrects the logarithm of the analytic estimate."""

    forest: Forest
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
            members = [
                (float(member["first"]), [read_tree(tree, len(FEATURES)) for tree in member["trees"]])
                for member in obj["members"]
            ]
            if not members:
                raise BadInput("predictor has no members: valid is one or more")
            forest, bias = Forest.of(members, FEATURES), float(obj["bias"])
            for number in (bias, forest.reach):
                if not abs(number) <= LARGEST_LOG:
                    raise BadInput(f"predictor moves times by e^{number:g}: valid is at most e^{LARGEST_LOG:g}")
            return cls(forest, bias, Constants.from_json(obj["constants"], device))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"predictor cannot be read: {error!r}") from error

    def scores(self, problem: Problem, schedules: Sequence[Schedule], device: Device) -> list[float]:
        """Logarithms of the expected times and of the DOUBT about them, up to a constant of the problem: smaller is
        better."""
        score = self._scorer(problem, device)
        return [sum(score(s, analyse(problem, s, device, self.constants))) for s in schedules]

    def _scorer(self, problem: Problem, device: Device) -> Callable[[Schedule, Terms], tuple[float, float]]:
        """What gives the two parts of the score of a schedule, from it and its analysis."""
        floor = floor_us(problem, device, self.constants)
        by_problem = self.forest.kept(of_problem(problem, floor))

        def score(schedule: Schedule, terms: Terms) -> tuple[float, float]:
            by_both = self.forest.kept(of_both(problem, schedule, terms, floor))
            said = self.forest.values(by_problem & _kept_by(self.forest, schedule) & by_both)
            mean = sum(said) / len(said)
            return math.log(terms.total_us) + mean, DOUBT * math.dist(said, [mean] * len(said)) / math.sqrt(len(said))

        return score

    def expected_us(self, problem: Problem, schedule: Schedule, device: Device) -> float:
        """Expected time of one call in microseconds."""
        expected, _ = self._scorer(problem, device)(schedule, analyse(problem, schedule, device, self.constants))
        return math.exp(expected + self.bias)

    def rank(self, problem: Problem, schedules: Sequence[Schedule], device: Device) -> list[Schedule]:
        """The schedules, which must be valid, best first."""
        return [s for *_, s in self._ordered(problem, schedules, device)]

    def best(self, problem: Problem, schedules: Sequence[Schedule], device: Device) -> tuple[Schedule, float]:
        """The first of the ranking of one or more schedules, and its expected time in microseconds."""
        *_, expected, schedule = self._ordered(problem, schedules, device)[0]
        return schedule, math.exp(expected + self.bias)

    def _ordered(
        self, problem: Problem, schedules: Sequence[Schedule], device: Device
    ) -> list[tuple[bool, float, float, Schedule]]:
        """Whether the analytic model alone ranks a schedule, its score, the logarithm of its expected time, and the
        schedule; best first."""
        terms = {s: analyse(problem, s, device, self.constants) for s in schedules}
        score = self._scorer(problem, device)
        limit = HOPELESS * min((t.total_us for t in terms.values()), default=0.0)
        ordered = []
        for s, t in terms.items():
            hopeless = t.total_us > limit
            expected, doubt = (math.log(t.total_us), 0.0) if hopeless else score(s, t)
            ordered.append((hopeless, expected + doubt, expected, s))
        return sorted(ordered)


@functools.lru_cache(maxsize=4096)
def _kept_by(forest: Forest, schedule: Schedule) -> int:
    """The leaves that the schedule does not rule out by itself: a table's are asked about for many problems."""
    return forest.kept(of_schedule(schedule))
