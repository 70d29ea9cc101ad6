"""Successive halving: the few that look best meet in the same rounds, and the better half meets again for longer.

Who is not told from the best stays, so that chance does not decide who reaches the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..cost_model.costs import CYCLES, costs, yardstick
from ..heuristics.noise import Noise
from ..heuristics.selection import OF_CHANCE, margins_among, select
from ..measure.policy import DEALINGS, SCREEN
from ..space import FOR_TIME, Problem, Schedule
from .runner import OnMeasure, Runner

RACE = replace(SCREEN, name="race", rounds=DEALINGS, dealings=DEALINGS)
"""The policy of the first heat."""


def race(
    runner: Runner,
    problem: Problem,
    entrants: Sequence[Schedule],
    keep: int,
    on_measure: OnMeasure,
    objective: str = FOR_TIME,
    noise: Noise | None = None,
) -> list[Schedule]:
    """The best `keep` of the entrants and those that may be as good as the very best, best first: within two margins of
    screening. Each heat has twice the rounds of the last."""
    policy = RACE.tuning_for(objective)
    ranking = list(entrants)
    noise = noise or Noise()
    dropped = len(ranking) > keep
    while dropped:
        measures = runner.measure(problem, ranking, policy, on_measure)
        cost_of = costs(measures, objective)
        finished = sorted(cost_of, key=lambda s: (cost_of[s], s))
        staying = set(finished[: max(keep, len(ranking) // 2)])
        if len(finished) > len(staying):
            stick = yardstick(measures, objective)
            margins = margins_among(measures, [SCREEN.key], runner.device, noise, objective)
            margin = OF_CHANCE * (margins.cycles if stick == CYCLES else margins.cost)
            staying.update(select(cost_of, margin).tied)
        ranking = [schedule for schedule in finished if schedule in staying]
        dropped = keep < len(ranking) < len(finished)
        policy = replace(policy, rounds=2 * policy.rounds)
    return ranking
