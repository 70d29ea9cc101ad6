"""Successive halving: the few that look best meet in the same rounds, and the better half meets again for longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..cost_model.costs import costs
from ..measure.policy import SCREEN
from ..space import FOR_TIME, Problem, Schedule
from .runner import OnMeasure, Runner

RACE = replace(SCREEN, name="race", rounds=2 * SCREEN.rounds)
"""The policy of the first heat."""


def race(
    runner: Runner,
    problem: Problem,
    entrants: Sequence[Schedule],
    keep: int,
    on_measure: OnMeasure,
    objective: str = FOR_TIME,
) -> list[Schedule]:
    """At most `keep` of the entrants, best first. Each heat has twice the rounds of the one before."""
    policy = RACE.tuning_for(objective)
    ranking = list(entrants)
    while len(ranking) > keep:
        cost_of = costs(runner.measure(problem, ranking, policy, on_measure), objective)
        finished = sorted(cost_of, key=lambda s: (cost_of[s], s))
        ranking = finished[: max(keep, len(ranking) // 2)]
        policy = replace(policy, rounds=2 * policy.rounds)
    return ranking
