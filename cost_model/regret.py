"""How well a model chooses for problems it has not seen: regret and prune recall, families of problems held out."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ..space import Device, Problem, Schedule
from .analytic import estimate_us
from .costs import M, Measured, by_problem, costs
from .ranker import family, train

Rank = Callable[[Problem, Sequence[Schedule]], Sequence[Schedule]]
"""Puts the schedules of a problem in order, best first."""

TIE = 0.01
"""Screened costs closer than this are not told apart."""


@dataclass(frozen=True, slots=True)
class Regret:
    """How the first `picks` of a ranking compare with the best measured, over problems."""

    per_problem: dict[Problem, float]
    """Time of the best among the picks over that of the best known, minus one."""
    recall: float
    """Share of problems whose best, or one that ties with it, is within the first tenth of the ranking."""

    @property
    def mean(self) -> float:
        """Geometric mean over problems, minus one."""
        return math.exp(statistics.fmean(math.log1p(r) for r in self.per_problem.values())) - 1

    @property
    def worst_decile(self) -> float:
        """The regret that nine in ten problems stay under."""
        ordered = sorted(self.per_problem.values())
        return ordered[min(len(ordered) - 1, math.ceil(0.9 * len(ordered)) - 1)]


def split_families(measures: Sequence[M], folds: int, seed: int = 0) -> Iterator[tuple[list[M], list[M]]]:
    """(training, held out) for each fold: no (n, k) family is on both sides."""
    names = sorted({family(m.problem) for m in measures})
    random.Random(seed).shuffle(names)
    for fold in range(min(folds, len(names))):
        held = set(names[fold::folds])
        yield [m for m in measures if family(m.problem) not in held], [m for m in measures if family(m.problem) in held]


def held_out_regret(
    measures: Iterable[Measured], device: Device, folds: int = 5, picks: int = 1, seed: int = 0
) -> Regret:
    """The regret of a ranker on families that it was not trained on."""
    measures = list(measures)
    per_problem: dict[Problem, float] = {}
    recalls: list[float] = []
    for training, held in split_families(measures, folds, seed):
        ranker = train(training, device, seed)
        regret = evaluate(held, partial(ranker.rank, device=device), picks)
        per_problem.update(regret.per_problem)
        recalls += [regret.recall] * len(regret.per_problem)
    return Regret(per_problem, statistics.fmean(recalls))


def analytic_regret(measures: Iterable[Measured], device: Device, picks: int = 1) -> Regret:
    """The regret of the analytic model alone."""
    return evaluate(measures, lambda p, s: sorted(s, key=lambda s: estimate_us(p, s, device)), picks)


def evaluate(measures: Iterable[Measured], rank: Rank, picks: int = 1) -> Regret:
    """The regret of any ranking on the problems of `measures`, among the schedules measured on each."""
    per_problem = {}
    within = []
    for problem, group in by_problem(measures).items():
        cost_of = costs(group)
        if not cost_of:
            continue
        ranking = rank(problem, list(cost_of))
        best = min(cost_of.values())
        per_problem[problem] = min(cost_of[s] for s in ranking[:picks]) / best - 1
        kept = ranking[: max(1, len(ranking) // 10)]
        within.append(any(cost_of[s] <= best * (1 + TIE) for s in kept))
    return Regret(per_problem, statistics.fmean(within))
