"""An Optuna sampler on the space of one problem: it asks for schedules and learns what they cost."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler

from ..space import ALL_VALUES, Schedule
from .spaces import SearchSpace

SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(multivariate=True, constant_liar=True, seed=seed),
    "qmc": lambda seed: QMCSampler(seed=seed, warn_independent_sampling=False),
    "genetic": lambda seed: NSGAIISampler(population_size=16, seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
}
"""Optuna's samplers by name, made from a seed: the default first."""

_FAILED = 1.0
"""How much worse than the worst measured schedule a failed one is, in logarithm."""


class Sampler:
    """Suggests schedules by one of SAMPLERS.

    Optuna draws every dimension from all of its values; what is not valid together becomes the nearest schedule of
    the space, and it is told of that one. Suggestions may repeat.
    """

    def __init__(self, space: SearchSpace, name: str, seed: int) -> None:
        self._space = space
        self._asked: list[optuna.Trial] = []
        self._worst: float | None = None
        with _quiet():
            self._study = optuna.create_study(sampler=SAMPLERS[name](seed), direction="minimize")

    def ask(self, count: int) -> list[Schedule]:
        """`count` suggestions."""
        found = []
        for _ in range(count):
            trial = self._study.ask(dict(DISTRIBUTIONS))
            self._asked.append(trial)
            found.append(self._space.project(_wish(trial.params)))
        return found

    def tell(self, outcomes: Mapping[Schedule, float | None]) -> None:
        """What schedules cost, suggested here or not; None for one that failed."""
        while self._asked:
            # What was asked has been measured as the valid schedule nearest to it, and is told as that.
            self._study.tell(self._asked.pop(), state=optuna.trial.TrialState.FAIL)
        known = [math.log(cost) for cost in outcomes.values() if cost is not None]
        self._worst = max(known if self._worst is None else [*known, self._worst], default=None)
        for schedule, cost in outcomes.items():
            if cost is not None:
                value = math.log(cost)
            elif self._worst is not None:
                value = self._worst + _FAILED
            else:
                continue
            self._study.add_trial(trial_of(schedule, value))


def trial_of(
    schedule: Schedule, value: float | None, attributes: Mapping[str, Any] | None = None
) -> optuna.trial.FrozenTrial:
    """A finished trial of a schedule, for a study; without a value it is one that failed."""
    state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
    return optuna.trial.create_trial(
        state=state,
        params=_params(schedule),
        distributions=dict(DISTRIBUTIONS),
        value=value,
        user_attrs=dict(attributes or {}),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's words on standard error."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
    optuna.logging.set_verbosity(verbosity)


def _distribution(values: tuple[Any, ...]) -> BaseDistribution:
    """Numbers are indices into their ordered values, so that a sampler knows which are close; words are not."""
    if isinstance(values[0], str | bool):
        return CategoricalDistribution(values)
    return IntDistribution(0, len(values) - 1)


DISTRIBUTIONS: Mapping[str, BaseDistribution] = {name: _distribution(values) for name, values in ALL_VALUES.items()}
"""Every dimension as Optuna draws it."""


def _params(schedule: Schedule) -> dict[str, Any]:
    params = {}
    for name, values in ALL_VALUES.items():
        value = getattr(schedule, name)
        params[name] = values.index(value) if isinstance(DISTRIBUTIONS[name], IntDistribution) else value
    return params


def _wish(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "producer_regs": 0,
        **{
            name: ALL_VALUES[name][value] if isinstance(DISTRIBUTIONS[name], IntDistribution) else value
            for name, value in params.items()
        },
    }
