"""A journal nobody measured: the analytic model, bent by what it does not know, plus seeded noise."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from tileseek.cost_model.analytic import estimate_us
from tileseek.cost_model.draft import draft
from tileseek.heuristics.journal import JournalContents, Measure, measure_from_json
from tileseek.space import H200, Problem, Schedule, sample

ENV = "synthetic"


def true_us(problem: Problem, s: Schedule) -> float:
    """A time with effects that the analytic model has no idea of and a ranker can learn."""
    bend = 0.0
    bend += 0.10 * s.serpentine
    bend += 0.08 * (s.store == "direct")
    bend += 0.05 * abs(math.log2(s.stages / 4))
    bend += 0.12 * (s.tile_n % 64 != 0)
    bend += 0.06 * (s.arrangement == "pp") * (1 if problem.k > 2048 else -1)
    return estimate_us(problem, s, H200) * math.exp(bend)


def line(problem: Problem, s: Schedule, us: float, status: str = "correct") -> dict[str, object]:
    timed = {"median_us": us, "times_us": [us], "ratio_to_ref": 100 / us} if status == "correct" else {}
    return {
        "kind": "measure",
        "problem": problem.to_json(),
        "schedule": s.to_json(),
        "status": status,
        "env": ENV,
        "policy": "synthetic",
        **timed,
    }


def measure(problem: Problem, s: Schedule, us: float, status: str = "correct") -> Measure:
    return measure_from_json(line(problem, s, us, status))


def journal(problems: Sequence[Problem], each: int = 120, seed: int = 0, noise: float = 0.01) -> JournalContents:
    """Half of each problem's schedules are the draft's, the others random and not hopelessly slow."""
    rng = random.Random(seed)
    contents = JournalContents(envs={ENV: {"gpu": "NVIDIA H200"}})
    for problem in problems:
        schedules = dict.fromkeys(draft(problem, H200, each // 2, seed))
        limit = 4 * min(estimate_us(problem, s, H200) for s in schedules)
        while len(schedules) < each:
            s = sample(problem, H200, rng)
            if estimate_us(problem, s, H200) < limit:
                schedules[s] = None
        for s in schedules:
            us = true_us(problem, s) * math.exp(rng.gauss(0, noise))
            contents.measures.append(measure(problem, s, us))
    return contents


PROBLEMS = [
    Problem(m, n, k) for n, k in ((4096, 4096), (6144, 4096), (2112, 7168), (8192, 1024)) for m in (16, 128, 2048, 8192)
]
