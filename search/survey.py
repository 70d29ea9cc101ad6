"""Measuring broadly rather than searching: the data that models learn from and searches are replayed on."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence

from ..cost_model.analytic import estimate_us
from ..cost_model.costs import costs
from ..heuristics.journal import Journal, JournalContents, Measure
from ..measure.policy import SCREEN
from ..space import BadInput, Problem, Schedule
from .known import known_before
from .polish import refinements
from .runner import OnMeasure, Runner
from .tuner import OnProgress, Progress, Summary, cheapest

BATCH = 48
"""Schedules measured together."""

DRAFT_SHARE = 0.3
NEAR_SHARE = 0.3
"""Shares of a problem's schedules: the draft's best, and the neighbourhood of the best measured. The rest is drawn
from the whole space, each dimension evenly."""

LAUNCHES = 3
"""Random launches tried for each random kernel: they compile nothing."""

SLOWEST = 6.0
"""Random schedules that the analytic model puts this many times behind its best are not worth the time they take."""

_TRIES = 50
"""Random draws for each schedule wanted."""


def survey(
    problems: Sequence[Problem],
    runner: Runner,
    per_problem: int,
    *,
    journal: Journal | None = None,
    history: JournalContents | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
) -> Summary:
    """Measure schedules until the journal holds `per_problem` of each problem under the runner's environment.

    Ctrl-C ends the survey; called again, it goes on from its journal.

    Raises:
        BadInput: no problems, or `per_problem` is not positive.
    """
    if not problems or per_problem < 1:
        raise BadInput(f"a survey of {len(problems)} problems, {per_problem} schedules each: valid are one or more")
    _, before = known_before(runner, journal, history)
    found = {problem: before.get(problem, []) for problem in problems}
    known = sum(len({m.schedule for m in measures}) for measures in found.values())
    started = runner.now()
    measured = 0

    def keep(measure: Measure) -> None:
        nonlocal measured
        if journal is not None:
            journal.append(measure.raw)
        found[measure.problem].append(measure)
        measured += 1
        if progress is not None:
            progress(Progress(measure, measured, runner.now() - started, "survey"))

    interrupted = False
    try:
        _work_through(runner, found, per_problem, seed, keep)
    except KeyboardInterrupt:
        interrupted = True
    best = {problem: cheapest(measures) for problem, measures in found.items()}
    return Summary(
        winners={problem: measure for problem, measure in best.items() if measure is not None},
        failed={problem: "no correct measure" for problem, measure in best.items() if measure is None},
        measured=measured,
        known=known,
        elapsed_s=runner.now() - started,
        interrupted=interrupted,
    )


def _work_through(
    runner: Runner, found: dict[Problem, list[Measure]], per_problem: int, seed: int, keep: OnMeasure
) -> None:
    """One batch of every problem after the other, each compiling while the one before is measured."""
    plans = [_Plan(problem, runner, per_problem, f"{seed} {problem.key}", found[problem]) for problem in found]
    batches = _batches(plans)
    batch = next(batches, None)
    while batch is not None:
        plan, schedules = batch
        runner.prepare(plan.problem, schedules)
        following = next(batches, None)
        if following is not None:
            runner.prepare(following[0].problem, following[1])
        runner.measure(plan.problem, schedules, SCREEN, keep)
        batch = following


def _batches(plans: Sequence[_Plan]) -> Iterator[tuple[_Plan, list[Schedule]]]:
    waiting = list(plans)
    while waiting:
        plan = waiting.pop(0)
        schedules = plan.next()
        if schedules:
            yield plan, schedules
            waiting.append(plan)


class _Plan:
    """What a survey still measures of one problem. `measures` grows as results come in."""

    def __init__(self, problem: Problem, runner: Runner, wanted: int, seed: str, measures: list[Measure]) -> None:
        self.problem = problem
        self._device = runner.device
        self._space = runner.space(problem)
        self._wanted = wanted
        self._rng = random.Random(seed)
        self._measures = measures
        self._seen = {m.schedule for m in measures}
        self._drafted: list[Schedule] | None = None
        self._limit = 0.0

    def next(self) -> list[Schedule]:
        """The next batch; empty when there are enough."""
        count = min(BATCH, self._wanted - len(self._seen))
        batch: list[Schedule] = []
        if count > 0:
            if self._drafted is None:
                self._drafted = self._space.draft(math.ceil(DRAFT_SHARE * self._wanted), 0)
                self._limit = SLOWEST * min(self._estimate(s) for s in self._drafted)
            best = sorted((value, s) for s, value in costs(self._measures).items())[:3]
            near = refinements(self._space, [s for _, s in best], self._rng)
            self._take(near, math.ceil(NEAR_SHARE * count), batch)
            # One batch of the draft comes first; it gives the neighbourhoods something to start from.
            drafts = count if not self._seen else math.ceil(DRAFT_SHARE * count)
            self._take(self._drafted, drafts, batch)
            self._take(self._chance(), count - len(batch), batch)
        return batch

    def _take(self, schedules: Iterable[Schedule], most: int, batch: list[Schedule]) -> None:
        for schedule in schedules:
            if most <= 0:
                return
            if schedule not in self._seen:
                self._seen.add(schedule)
                batch.append(schedule)
                most -= 1

    def _chance(self) -> Iterator[Schedule]:
        """Random schedules, several launches of each kernel in turn."""
        for _ in range(_TRIES * BATCH):
            kernel = self._space.sample(self._rng)
            if self._estimate(kernel) > self._limit:
                continue
            yield kernel
            walks = self._space.walks(kernel)
            yield from self._rng.sample(walks, min(LAUNCHES - 1, len(walks)))

    def _estimate(self, schedule: Schedule) -> float:
        return estimate_us(self.problem, schedule, self._device)
