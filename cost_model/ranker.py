"""The learned ranker: boosted trees that correct the analytic estimate, trained on a journal (scikit-learn).

Only differences inside a problem matter, so the trees learn what is left of log(time / estimate) after each
problem's own offset is taken away. Schedules near the best of their problem weigh most.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingRegressor

from ..space import BadInput, Device, Problem, Schedule
from .analytic import H200_CONSTANTS, Constants, analyse, floor_us
from .costs import Measured, by_problem, costs
from .features import FEATURES, features
from .forest import LEAF
from .predictor import DOUBT, PREDICTOR_VERSION

MEMBERS = 8
TREES = 16
DEPTH = 5
RATE = 0.25
"""Many members of few trees: on families held out their mean chooses better than few members of many trees, at equal
cost. So few in all, and so small (`forest.MOST_LEAVES`), that a query scores a schedule in tens of microseconds of pure
Python."""

LEAST_IN_LEAF = 20
"""Fewer schedules in a leaf are no rule for problems to come."""

NEAR = 0.4
"""log(time / best) at which a schedule weighs half of the best one."""

FAR = 1.1
"""log(time / best) beyond which a schedule teaches nothing: the analytic model knows that it is slow."""

LEAST_ROWS = 20
"""Fewer measured schedules teach nothing."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ranker:
    """Members trained on different draws of the families; their mean ranks, and what they do not agree on."""

    members: tuple[GradientBoostingRegressor, ...]
    bias: float
    constants: Constants

    def scores(self, problem: Problem, schedules: Sequence[Schedule], device: Device) -> list[float]:
        """Logarithms of the expected times and of the `predictor.DOUBT` about them, up to a constant of the problem:
        smaller is better."""
        if not schedules:
            return []
        expected, doubt = self._expected(problem, schedules, device)
        found: list[float] = (expected + doubt).tolist()
        return found

    def _expected(self, problem: Problem, schedules: Sequence[Schedule], device: Device) -> tuple[Vector, Vector]:
        """The two parts of the scores."""
        base, rows = _inputs(problem, schedules, device, self.constants)
        said = [member.predict(rows) for member in self.members]
        return base + np.mean(said, axis=0), DOUBT * np.std(said, axis=0)

    def rank(self, problem: Problem, schedules: Sequence[Schedule], device: Device) -> list[Schedule]:
        """The schedules, best first."""
        order = np.argsort(self.scores(problem, schedules, device), kind="stable")
        return [schedules[i] for i in order]

    def expected_us(self, problem: Problem, schedule: Schedule, device: Device) -> float:
        """Expected time of one call in microseconds."""
        expected, _ = self._expected(problem, [schedule], device)
        return math.exp(expected[0] + self.bias)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON that `predictor.Predictor` evaluates to the same scores."""
        return {
            "version": PREDICTOR_VERSION,
            "features": list(FEATURES),
            "bias": self.bias,
            "constants": asdict(self.constants),
            "members": [
                {
                    "first": float(np.ravel(member.init_.constant_)[0]),
                    "trees": [_nodes(tree.tree_, member.learning_rate) for tree in member.estimators_[:, 0]],
                }
                for member in self.members
            ],
        }


def train(measures: Iterable[Measured], device: Device, seed: int = 0, constants: Constants = H200_CONSTANTS) -> Ranker:
    """A ranker from every correct measure. The same measures and seed give the same ranker.

    Raises:
        BadInput: too few correct measures.
    """
    rows: list[NDArray[np.float32]] = []
    targets: list[float] = []
    weights: list[float] = []
    families: list[tuple[int, int]] = []
    offsets: list[float] = []
    for problem, group in by_problem(measures).items():
        cost_of = costs(group)
        if len(cost_of) < 2:
            continue
        schedules = list(cost_of)
        base, seen = _inputs(problem, schedules, device, constants)
        logs = np.log([cost_of[s] for s in schedules])
        weight = 1 / (1 + ((logs - logs.min()) / NEAR) ** 2) + 0.02
        near = logs - logs.min() <= FAR
        seen, weight = seen[near], weight[near]
        left = (logs - base)[near]
        rows.append(seen)
        targets += (left - np.average(left, weights=weight)).tolist()
        weights += (weight / weight.sum()).tolist()
        families += [family(problem)] * len(left)
        offsets.append(_offset(group, dict(zip(schedules, base.tolist(), strict=True))))
    if len(targets) < LEAST_ROWS:
        raise BadInput(f"{len(targets)} measured schedules to learn from: valid is {LEAST_ROWS} or more")
    x, y, w = np.concatenate(rows), np.array(targets), np.array(weights)
    names = {name: place for place, name in enumerate(sorted(set(families)))}
    group_of = np.array([names[name] for name in families])

    def member(index: int) -> GradientBoostingRegressor:
        rng = np.random.default_rng((seed, index))
        # Whole families are drawn, as they are what an unseen problem differs by.
        drawn = np.bincount(rng.integers(len(names), size=len(names)), minlength=len(names)) if len(names) > 2 else None
        weight = w if drawn is None else w * (drawn[group_of] + 0.1)
        trees = GradientBoostingRegressor(
            n_estimators=TREES,
            max_depth=DEPTH,
            learning_rate=RATE,
            subsample=0.3,
            max_features=0.3,
            min_samples_leaf=LEAST_IN_LEAF,
            random_state=int(rng.integers(2**31)),
        )
        return trees.fit(x, y, sample_weight=weight)

    # Growing trees leaves the interpreter's lock to others.
    with ThreadPoolExecutor() as pool:
        members = tuple(pool.map(member, range(MEMBERS)))
    return Ranker(members, statistics.median(offsets), constants)


def family(problem: Problem) -> tuple[int, int]:
    """What problems must share to be kept on one side of a split: a weight matrix serves many m."""
    return problem.n, problem.k


def _inputs(
    problem: Problem, schedules: Sequence[Schedule], device: Device, constants: Constants
) -> tuple[Vector, NDArray[np.float32]]:
    """Logarithms of the analytic estimates, and the rows of features."""
    floor = floor_us(problem, device, constants)
    terms = [analyse(problem, s, device, constants) for s in schedules]
    rows = [features(problem, s, t, floor) for s, t in zip(schedules, terms, strict=True)]
    return np.log([t.total_us for t in terms]), np.array(rows, dtype=np.float32)


def _offset(group: Sequence[Measured], base: Mapping[Schedule, float]) -> float:
    """log(time / estimate) of a problem's typical schedule among its fastest half; `base` are log(estimate)."""
    timed = sorted((m.median_us, m.schedule) for m in group if m.status == "correct" and m.median_us is not None)
    fast = timed[: (len(timed) + 1) // 2]
    return statistics.median(math.log(t) - base[s] for t, s in fast)


def _nodes(tree: Any, rate: float) -> list[list[float]]:
    return [
        [LEAF, rate * float(value), 0, 0] if left < 0 else [int(feature), float(threshold), int(left), int(right)]
        for feature, threshold, left, right, value in zip(
            tree.feature, tree.threshold, tree.children_left, tree.children_right, tree.value[:, 0, 0], strict=True
        )
    ]
