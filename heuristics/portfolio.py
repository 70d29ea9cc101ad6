"""The portfolio: the few kernels that serve many problems nearly as well as the best kernel of each would.

A library ships few kernels. Which serve best together is chosen from what was measured, greedily: each kernel that
joins is the one that takes most from the loss of all problems, which comes within 1 - 1/e of the best choice of that
size (Nemhauser, Wolsey, Fisher 1978). Then one leaves as long as exchanges of single kernels keep the loss. Launch
choices come free with a kernel: they compile nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..cost_model.costs import by_problem, costs
from ..space import BadInput, Problem, Schedule
from .journal import Measure

UNSERVED = 0.5
"""Loss that a problem counts with while no kernel of the portfolio was measured on it."""


@dataclass(frozen=True, slots=True, order=True)
class Kernel:
    """What is compiled: a kind of problem, and a schedule with its launch choices at their defaults."""

    kind: tuple[str, ...]
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class Served:
    """How a problem is served: the measured schedule, one of its kernel's launches, and the loss against the best."""

    schedule: Schedule
    loss: float


Serves = Mapping[Kernel, Mapping[Problem, Served]]
"""For each kernel the problems it serves."""


@dataclass(frozen=True, slots=True)
class Portfolio:
    """Kernels in the order in which they joined. Losses are times over the best known, minus one."""

    kernels: tuple[Kernel, ...]
    geomean: tuple[float, ...]
    worst: tuple[float, ...]
    """The loss over all problems, and on the worst one, with the first 1, 2, 3 ... kernels."""
    served: Mapping[Problem, Served]
    """By all of the kernels; a problem that none was measured on is missing."""

    def to_json(self) -> dict[str, Any]:
        """The whole portfolio."""
        return {
            "kernels": [{"kind": list(k.kind), "schedule": k.schedule.name} for k in self.kernels],
            "curve": [
                {"kernels": count, "geomean_loss": round(mean, 5), "worst_loss": round(worst, 5)}
                for count, mean, worst in zip(range(1, len(self.kernels) + 1), self.geomean, self.worst, strict=True)
            ],
            "problems": [
                {"problem": p.to_json(), "schedule": s.schedule.name, "loss": round(s.loss, 5)}
                for p, s in sorted(self.served.items())
            ],
        }


def portfolio(measures: Iterable[Measure], loss: float, least: int = 1) -> Portfolio:
    """The kernels that bring the geometric mean of the loss to at most `loss`, for the problems measured with at
    least `least` schedules.

    Only what was measured counts: a kernel serves a problem by its best launch measured there.

    Raises:
        BadInput: no problem has that many schedules, or `loss` is negative.
    """
    if not 0 <= loss < math.inf:
        raise BadInput(f"the loss is {loss:g}: valid is 0 or more, such as 0.03")
    serves = _serves(measures, least)
    problems = {p for of_problem in serves.values() for p in of_problem}
    if not problems:
        raise BadInput(f"no problem was measured with {least} schedules: valid is a smaller number")
    chosen = _greedily(serves, problems, loss)
    while chosen.geomean[-1] <= loss and len(chosen.kernels) > 1:
        fewer = _exchanged(chosen.kernels[:-1], serves, problems)
        found = _greedily({kernel: serves[kernel] for kernel in fewer}, problems, loss)
        if found.geomean[-1] > loss:
            break
        chosen = found
    return chosen


def _greedily(serves: Serves, problems: Collection[Problem], loss: float) -> Portfolio:
    """Kernels that join one after the other, those first that take most from the loss, until it is at most `loss`."""
    current = dict.fromkeys(problems, math.log1p(UNSERVED))
    left = dict(sorted(serves.items()))
    chosen: list[Kernel] = []
    means: list[float] = []
    worsts: list[float] = []
    served: dict[Problem, Served] = {}
    while not means or means[-1] > loss:
        best = max(left, key=lambda kernel: _gain(left[kernel], current), default=None)
        if best is None or _gain(left[best], current) <= 0:
            break
        for problem, service in left.pop(best).items():
            if math.log1p(service.loss) < current[problem]:
                current[problem] = math.log1p(service.loss)
                served[problem] = service
        chosen.append(best)
        means.append(math.expm1(statistics.fmean(current.values())))
        worsts.append(math.expm1(max(current.values())))
    return Portfolio(tuple(chosen), tuple(means), tuple(worsts), served)


def _exchanged(kernels: Sequence[Kernel], serves: Serves, problems: Collection[Problem]) -> list[Kernel]:
    """As many kernels, none of which could be exchanged for another to lower the loss."""
    chosen = list(kernels)
    tried = 0
    while tried < len(chosen):
        first, *others = chosen
        without = dict.fromkeys(problems, math.log1p(UNSERVED))
        for kernel in others:
            for problem, service in serves[kernel].items():
                without[problem] = min(without[problem], math.log1p(service.loss))
        best = max((k for k in serves if k not in others), key=lambda kernel: (_gain(serves[kernel], without), kernel))
        better = _gain(serves[best], without) > _gain(serves[first], without)
        chosen = [*others, best if better else first]
        tried = 1 if better else tried + 1
    return chosen


def _gain(of_kernel: Mapping[Problem, Served], current: Mapping[Problem, float]) -> float:
    return sum(max(0.0, current[problem] - math.log1p(service.loss)) for problem, service in of_kernel.items())


def _serves(measures: Iterable[Measure], least: int) -> Serves:
    """For each kernel the problems it was measured on."""
    serves: dict[Kernel, dict[Problem, Served]] = defaultdict(dict)
    for problem, group in by_problem(measures).items():
        cost_of = costs(group)
        if len(cost_of) < least or not cost_of:
            continue
        cheapest = min(cost_of.values())
        for schedule in sorted(cost_of, key=lambda s: (cost_of[s], s)):
            # The first launch of a kernel is its best.
            serves[Kernel(problem.kind, schedule.kernel)].setdefault(
                problem, Served(schedule, cost_of[schedule] / cheapest - 1)
            )
    return dict(serves)
