"""What a query answers for problems whose family its table does not know, and how far that is from the best.

A query may choose what nobody has measured. Such a schedule is judged by a ranker that was trained on everything, the
problem's own measures included.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..cost_model.costs import by_problem, costs
from ..cost_model.ranker import family, train
from ..cost_model.regret import split_families
from ..heuristics.journal import Measure
from ..heuristics.query import best_schedule
from ..heuristics.table import Table
from ..space import BadInput, Problem

WAYS = {"query": False, "query --quick": True}
"""How a table may be asked, and whether that is `quick`."""


@dataclass(slots=True)
class Answered:
    """The answers for one problem."""

    problem: Problem
    efficiency: dict[str, float] = field(default_factory=dict)
    """For each of WAYS, cost of the best schedule measured over that of the answer."""
    log_error: dict[str, float] = field(default_factory=dict)
    """Of those of WAYS whose answer was measured, and not judged: logarithm of the time expected over that measured."""


def answers(
    measures: Sequence[Measure],
    table: Table,
    *,
    folds: int = 10,
    least: int = 300,
    seed: int = 0,
    progress: Callable[[str, int], None] = lambda now, done: None,
) -> list[Answered]:
    """The answers for every problem with at least `least` schedules, of `table` without the entries of its family and
    with a predictor that was trained without its measures; `table` and `measures` are of the same journals.

    Raises:
        BadInput: no problem has as many, or there is only one family.
    """
    device = table.device
    judge = train(measures, device, seed + 1)
    times = {(m.problem, m.schedule): m.median_us for m in measures if m.median_us is not None}
    found: list[Answered] = []
    for fold, (training, held) in enumerate(split_families(measures, folds, seed), start=1):
        cases = {p: cost_of for p, group in by_problem(held).items() if len(cost_of := costs(group)) >= least}
        if not cases or not training:
            continue
        progress(f"fold {fold}", len(found))
        families = {family(measure.problem) for measure in training}
        entries = tuple(entry for entry in table.entries if family(entry.problem) in families)
        asked = replace(table, entries=entries, predictor=train(training, device, seed).to_json())
        for problem, cost_of in sorted(cases.items()):
            best = min(cost_of, key=lambda s: (cost_of[s], s))
            answered = Answered(problem)
            for way, quick in WAYS.items():
                choice = best_schedule(problem, asked, quick=quick)
                if choice.schedule in cost_of:
                    answered.efficiency[way] = cost_of[best] / cost_of[choice.schedule]
                    answered.log_error[way] = math.log(choice.expected_us / times[problem, choice.schedule])
                else:
                    expected = [judge.expected_us(problem, s, device) for s in (best, choice.schedule)]
                    answered.efficiency[way] = expected[0] / expected[1]
            found.append(answered)
            progress(f"fold {fold}", len(found))
    if not found:
        raise BadInput(f"no problem with {least} schedules beside other families: valid is a journal with some")
    return sorted(found, key=lambda each: each.problem)


def reliability(found: Sequence[Answered], way: str) -> dict[str, float | None]:
    """The share of the answers that were `measured`, and the median of how far their expected times are off, as
    `expected_off`: null when none was."""
    errors = [abs(each.log_error[way]) for each in found if way in each.log_error]
    off = round(statistics.median(errors), 4) if errors else None
    return {"measured": round(len(errors) / len(found), 4), "expected_off": off}
