"""How few measurements find the best schedule: ways of searching compared on a journal, by replay.

Problems are held out by (n, k) family: whatever a way of searching knows beforehand, its ranker and the schedules it
transfers, comes from the problems of other families. A fold at a time is held out.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..cost_model.analytic import estimate_us
from ..cost_model.costs import by_problem, costs
from ..cost_model.draft import spread
from ..cost_model.ranker import Ranker, train
from ..cost_model.regret import TIE, split_families
from ..heuristics.journal import JournalContents, Measure
from ..space import BadInput, Device, Problem, Schedule, draw, shown
from .answers import WAYS, Answered, reliability
from .budget import Budget
from .nvidia import available, nvidia_order
from .runner import ReplayRunner
from .spaces import ListedSpace
from .strategies import InOrder, Sampled, Strategy
from .tuner import Options, tune

COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Measurements after which the best found so far is compared with the best of the journal."""

WITHIN = (0.01, 0.02, 0.05)
"""Regrets that count as within 1, 2, 5 %."""

KEPT = 0.1
"""Share of a problem's schedules that pruning keeps."""

DRAWN = 1000
"""Schedules of a problem's whole valid space that the best of the journal is ranked among."""

LEAST = 300
"""Schedules a problem must have been measured with to be searched; those with fewer only teach."""


@dataclass(frozen=True, slots=True)
class Case:
    """A problem to search by replay, and what may be known of others: no problem of its family."""

    problem: Problem
    measures: Sequence[Measure]
    costs: Mapping[Schedule, float]
    others: Sequence[Measure]
    ranker: Ranker
    device: Device
    seed: int

    @property
    def best(self) -> float:
        """The cost of the best schedule of the journal."""
        return min(self.costs.values())

    @property
    def schedules(self) -> list[Schedule]:
        """What was measured, in an order that says nothing."""
        return sorted(self.costs)

    def estimate(self, schedule: Schedule) -> float:
        """The analytic model's microseconds."""
        return estimate_us(self.problem, schedule, self.device)


Arm = Callable[[Case, int], list[Schedule]]
"""A way of searching: the first schedules it measures of a case, in order."""


def _explored(strategy: Strategy, case: Case, count: int) -> list[Schedule]:
    """One measurement after the other, each known before the next is chosen."""
    order: list[Schedule] = []
    while len(order) < count and (batch := strategy.propose(1)):
        strategy.tell({s: case.costs[s] for s in batch})
        order += batch
    return order


def _chance(case: Case, count: int) -> list[Schedule]:
    return _explored(InOrder(random.Random(case.seed).sample(case.schedules, len(case.costs))), case, count)


def _sampled(sampler: str, case: Case, count: int) -> list[Schedule]:
    space = ListedSpace(case.problem, case.device, case.costs)
    return _explored(Sampled(space, sampler, case.seed), case, count)


def _drafted(case: Case, count: int) -> list[Schedule]:
    return _explored(InOrder(spread(sorted((case.estimate(s), s) for s in case.costs))), case, count)


def _ranked(case: Case, count: int) -> list[Schedule]:
    return _explored(InOrder(case.ranker.rank(case.problem, case.schedules, case.device)), case, count)


def _nvidia(case: Case, count: int) -> list[Schedule]:
    return _explored(InOrder(nvidia_order(case.problem, case.schedules, case.device)), case, count)


def _tuned(case: Case, count: int) -> list[Schedule]:
    order: list[Schedule] = []
    tune(
        [case.problem],
        ReplayRunner(JournalContents(measures=list(case.measures)), case.device),
        Budget(measurements=count),
        history=JournalContents(measures=list(case.others)),
        ranker=case.ranker,
        options=Options(seed=case.seed, finals=False),
        progress=lambda at: order.append(at.measure.schedule),
    )
    return order


ARMS: Mapping[str, Arm] = {
    "random": _chance,
    "tpe": partial(_sampled, "tpe"),
    "qmc": partial(_sampled, "qmc"),
    "genetic": partial(_sampled, "genetic"),
    "draft": _drafted,
    "ranker": _ranked,
    "nvidia": _nvidia,
    "tuner": _tuned,
}
"""The ways of searching: chance, each of Optuna's samplers alone, the analytic model's order, the learned ranker's,
nvMatmulHeuristics', and the whole tuner."""


def arm_names(asked: Sequence[str] | None = None) -> list[str]:
    """The arms that can run here, or those `asked`.

    Raises:
        BadInput: one is unknown or cannot run here.
    """
    names = [name for name in ARMS if name != "nvidia" or available()]
    for name in asked or ():
        if name not in names:
            raise BadInput(f"arm is {shown(name)}: valid are {', '.join(names)}")
    return list(asked or names)


@dataclass(slots=True)
class Replayed:
    """One problem: what every arm found, and whether the best schedule survives pruning."""

    problem: Problem
    schedules: int
    efficiency: dict[str, dict[int, float]] = field(default_factory=dict)
    """For each arm, after each of COUNTS: cost of the journal's best over that of the best found; 1 is the best."""
    survives: bool = False
    """Whether the best schedule is within the share KEPT of the ranker's order of the measured schedules. Nearly all of
    these were measured because a model liked them."""
    tie_survives: bool = False
    """Whether it or one within TIE of it is."""
    drawn_before: float = 0.0
    """Share of valid schedules, drawn at random as `space.sample` does, that the ranker puts before the best."""
    space_before: float = 0.0
    """The same with every draw weighted by the number of schedules it stands for: the share of the valid space."""
    log_error: float = 0.0
    """Logarithm of the time expected of the best schedule over that measured."""


def replay(
    measures: Sequence[Measure],
    device: Device,
    *,
    arms: Sequence[str] | None = None,
    folds: int = 10,
    least: int = LEAST,
    most: int = COUNTS[-1],
    drawn: int = DRAWN,
    seed: int = 0,
    progress: Callable[[str, int], None] = lambda now, done: None,
) -> list[Replayed]:
    """Every arm on every problem that was measured with at least `least` schedules, up to `most` measurements; the best
    of each is also ranked among `drawn` schedules of its valid space.

    Raises:
        BadInput: no problem has as many, there is only one family, or an arm is unknown or cannot run here.
    """
    names = arm_names(arms)
    found: list[Replayed] = []
    for fold, (training, held) in enumerate(split_families(measures, folds, seed), start=1):
        cases = {p: (group, costs(group)) for p, group in by_problem(held).items()}
        cases = {p: case for p, case in cases.items() if len(case[1]) >= least}
        if not cases or not training:
            continue
        progress(f"fold {fold}", len(found))
        ranker = train(training, device, seed)
        others = [replace(m, env="") for m in training]
        for problem, (group, cost_of) in sorted(cases.items()):
            found.append(_replayed(Case(problem, group, cost_of, others, ranker, device, seed), names, most, drawn))
            progress(f"fold {fold}", len(found))
    if not found:
        raise BadInput(f"no problem with {least} schedules beside other families: valid is a journal with some")
    return sorted(found, key=lambda each: each.problem)


def _replayed(case: Case, names: Sequence[str], most: int, drawn: int) -> Replayed:
    best = case.best
    result = Replayed(case.problem, len(case.costs))
    for name in names:
        order = ARMS[name](case, most)
        firsts = {count: min(case.costs[s] for s in order[:count]) for count in COUNTS if count <= most}
        result.efficiency[name] = {count: best / cost for count, cost in firsts.items()}
    kept = case.ranker.rank(case.problem, case.schedules, case.device)[: max(1, round(KEPT * len(case.costs)))]
    result.survives = any(case.costs[s] == best for s in kept)
    result.tie_survives = any(case.costs[s] <= best * (1 + TIE) for s in kept)
    winner = min(case.costs, key=lambda s: (case.costs[s], s))
    result.drawn_before, result.space_before = _before(case, winner, drawn)
    time = statistics.median(m.median_us for m in case.measures if m.schedule == winner and m.median_us is not None)
    expected = case.ranker.expected_us(case.problem, winner, case.device)
    result.log_error = math.log(expected / time)
    return result


def _before(case: Case, schedule: Schedule, drawn: int) -> tuple[float, float]:
    """The shares of `drawn` random schedules, and of the valid space as they represent it, that the ranker puts before
    `schedule`."""
    rng = random.Random(case.seed)
    draws = [draw(case.problem, case.device, rng) for _ in range(drawn)]
    weights = [stands_for for _, stands_for in draws]
    own, *scores = case.ranker.scores(case.problem, [schedule, *(s for s, _ in draws)], case.device)
    before = [score < own for score in scores]
    return sum(before) / drawn, sum(itertools.compress(weights, before)) / sum(weights)


def document(found: Sequence[Replayed], answered: Sequence[Answered] = ()) -> dict[str, Any]:
    """The JSON document of a replay, and of what queries answered for the same problems."""
    arms = {}
    for name in found[0].efficiency:
        curves = [each.efficiency[name] for each in found]
        arms[name] = {str(count): _summary([curve[count] for curve in curves]) for count in curves[0]}
    efficiency = {each.problem: each.efficiency for each in answered}
    return {
        "problems": len(found),
        "schedules": sum(each.schedules for each in found),
        "arms": arms,
        "answers": {
            way: {**_summary([each.efficiency[way] for each in answered]), **reliability(answered, way)}
            for way in WAYS
            if answered
        },
        "prune": {
            "kept": KEPT,
            "measured_recall": _share([each.survives for each in found]),
            "measured_recall_of_ties": _share([each.tie_survives for each in found]),
            "tie": TIE,
            "drawn_recall": _share([each.drawn_before < KEPT for each in found]),
            "space_recall": _share([each.space_before < KEPT for each in found]),
        },
        "expected_us": {
            "median_abs_log_ratio": round(statistics.median(abs(each.log_error) for each in found), 4),
            "median_log_ratio": round(statistics.median(each.log_error for each in found), 4),
        },
        "rows": [
            {
                "problem": each.problem.to_json(),
                "schedules": each.schedules,
                "best_survives": each.survives,
                "tie_survives": each.tie_survives,
                "drawn_before": round(each.drawn_before, 5),
                "space_before": round(each.space_before, 5),
                "expected_over_measured": round(math.exp(each.log_error), 4),
                "efficiency": {
                    name: {str(count): round(value, 5) for count, value in curve.items()}
                    for name, curve in each.efficiency.items()
                },
                "answers": {way: round(value, 5) for way, value in efficiency.get(each.problem, {}).items()},
            }
            for each in found
        ],
    }


def _summary(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    summary = {
        "geomean": math.exp(statistics.fmean(map(math.log, values))),
        # What nine in ten problems reach or exceed.
        "worst_decile": ordered[len(ordered) - math.ceil(0.9 * len(ordered))],
    }
    summary |= {f"within_{round(100 * w)}": _share([1 / value - 1 <= w for value in values]) for w in WITHIN}
    return {name: round(value, 5) for name, value in summary.items()}


def _share(flags: Sequence[bool]) -> float:
    return round(sum(flags) / len(flags), 4)
