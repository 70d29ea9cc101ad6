"""The search: many problems, one budget, one journal; it ends where it is told to and goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..cost_model.analytic import estimate_us
from ..cost_model.costs import cost, costs, yardstick
from ..cost_model.ranker import LEAST_ROWS, Ranker, train
from ..heuristics.journal import Journal, JournalContents, Measure, read_journal
from ..heuristics.query import distance
from ..measure.policy import SCREEN
from ..space import BadInput, Problem, Schedule
from .budget import Budget, Meter, gain
from .proposer import Proposer
from .race import race
from .runner import Runner
from .shootout import shootout

EXPLORING_SHARE = 0.8
"""Of a budget in seconds; the rest is for the final comparisons."""

FINALISTS = 8
LAST = 3
"""Schedules of a problem that race, and that meet cuBLAS in the end."""

TRANSFERS = 4
"""Nearest problems whose best schedules are tried."""

RELEARN = 1.5
"""The ranker is trained again when there are this many times the measures it has seen."""

LEAST_MEASURES = 4 * LEAST_ROWS
"""With fewer measures the analytic model ranks better than one learned from them."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to search. The same options, seed and measures give the same decisions."""

    seed: int = 0
    batch: int = 16
    """Schedules of one problem measured together; their compilation overlaps with the batch before."""
    learn: bool = True
    """Train the ranker on the journal as it grows."""
    finals: bool = True
    """Race the best of each problem and compare the winners with cuBLAS at the end."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, after each measure."""

    measure: Measure
    measured: int
    """Measurements of this run."""
    elapsed_s: float
    phase: str
    """`search` or `finals`."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to."""

    winners: dict[Problem, Measure]
    """The deciding measure of each problem's best schedule."""
    failed: dict[Problem, str]
    """Problems without a correct schedule, and the reason of the first failure."""
    measured: int
    """Measurements of this run."""
    known: int
    """Those it found in the journal."""
    elapsed_s: float
    interrupted: bool


OnProgress = Callable[[Progress], None]


def tune(
    problems: Sequence[Problem],
    runner: Runner,
    budget: Budget,
    *,
    journal: Journal | None = None,
    history: JournalContents | None = None,
    ranker: Ranker | None = None,
    incumbents: Mapping[Problem, Schedule] | None = None,
    options: Options | None = None,
    progress: OnProgress | None = None,
) -> Summary:
    """Search the best schedule of every problem within one budget.

    Every measure goes to `journal` at once. `history` is what is known before, by default what the journal holds:
    of it, measures made under the runner's environment are not made again, all others only teach. Ctrl-C ends the
    run with what was found.

    Raises:
        BadInput: no problems.
    """
    if not problems:
        raise BadInput("no problems to tune: valid is one or more")
    if history is None:
        history = read_journal(journal.path) if journal is not None else JournalContents()
    run = _Run(runner, budget, journal, history, ranker, dict(incumbents or {}), options or Options(), progress)
    return run.all(list(dict.fromkeys(problems)))


@dataclass(slots=True)
class _Task:
    """One problem of a run."""

    problem: Problem
    proposer: Proposer
    measures: list[Measure] = field(default_factory=list)
    stick: str = ""
    """The yardstick, fixed by the first correct measures so that the proposer's costs stay comparable."""
    curve: list[float | None] = field(default_factory=list)
    under_way: int = 0
    """Batches proposed and not yet measured."""
    winner: Measure | None = None

    def take(self, measures: Sequence[Measure]) -> None:
        """Learn what a batch came to."""
        if not self.stick and any(m.status == "correct" for m in measures):
            self.stick = yardstick(measures)
        self.proposer.tell({m.schedule: cost(m, self.stick) if self.stick else None for m in measures})
        for measure in measures:
            if measure.raw.get("kind") == "compile":
                self.proposer.reject(measure.schedule)

    def mark(self) -> None:
        """Note the best cost after a batch."""
        best = self.proposer.best(1)
        self.curve.append(self.proposer.cost(best[0]) if best else None)


class _Run:
    """The state of one call of `tune`."""

    def __init__(
        self,
        runner: Runner,
        budget: Budget,
        journal: Journal | None,
        history: JournalContents,
        ranker: Ranker | None,
        incumbents: dict[Problem, Schedule],
        options: Options,
        progress: OnProgress | None,
    ) -> None:
        self._runner = runner
        self._journal = journal
        self._ranker = ranker
        self._incumbents = incumbents
        self._options = options
        self._progress = progress
        self._lessons: list[Measure] = list(history.measures)
        self._learned = 0 if ranker is None else len(self._lessons)
        self._share_of_time = EXPLORING_SHARE if options.finals else 1.0
        self._phase = "search"
        self._measured = 0
        self._known: dict[Problem, list[Measure]] = {}
        for measure in [*history.measures, *history.compiles]:
            if measure.env == runner.env_key:
                self._known.setdefault(measure.problem, []).append(measure)
        self._tasks: dict[Problem, _Task] = {}
        self._budget = budget
        self._meter = Meter(budget, runner.now)
        if journal is not None and runner.env_key not in history.envs:
            journal.append({"kind": "env", "env": runner.env_key, **runner.env})

    def all(self, problems: Sequence[Problem]) -> Summary:
        known = 0
        for index, problem in enumerate(problems):
            before = self._known.get(problem, [])
            transfers = [*self._incumbent(problem), *self._transfers(problem)]
            task = _Task(problem, Proposer(self._runner.space(problem), self._options.seed + index, transfers))
            if before:
                task.measures += before
                task.take(before)
                task.mark()
                known += len({m.schedule for m in before})
            self._tasks[problem] = task
        self._meter = Meter(self._budget, self._runner.now, known)
        interrupted = False
        try:
            self._search()
            if self._options.finals:
                self._finals()
        except KeyboardInterrupt:
            interrupted = True
        return self._summary(known, interrupted)

    def _search(self) -> None:
        """Measure batch after batch; the next one is chosen, and compiles, while the last is measured."""
        batch = self._next(0)
        while batch is not None:
            task, schedules = batch
            self._runner.prepare(task.problem, schedules)
            following = self._next(len(schedules))
            if following is not None:
                self._runner.prepare(following[0].problem, following[1])
            # What is planned must still be affordable: the batch before may have taken longer than expected.
            schedules = schedules[: self._meter.affordable(len(schedules), self._share_of_time)]
            if not schedules:
                return
            measures = self._measure(task, schedules)
            self._meter.count(len(schedules))
            task.under_way -= 1
            task.take(measures)
            task.mark()
            self._learn()
            batch = following or self._next(0)

    def _next(self, planned: int) -> tuple[_Task, list[Schedule]] | None:
        """The next batch while `planned` measurements are still to be made; None when nothing is left to do."""
        count = self._meter.affordable(self._options.batch, self._share_of_time, planned)
        open_tasks = [task for task in self._tasks.values() if not task.proposer.exhausted]
        # A batch under way counts as made, so that a round goes to every problem first.
        open_tasks.sort(key=lambda task: -gain([*task.curve, *[None] * task.under_way]))
        for task in open_tasks if count else ():
            self._share(task)
            schedules = task.proposer.propose(count, partial(self._rank, task))
            if schedules:
                task.under_way += 1
                return task, schedules
        return None

    def _measure(self, task: _Task, schedules: Sequence[Schedule]) -> list[Measure]:
        return self._runner.measure(task.problem, schedules, SCREEN, partial(self._keep, task))

    def _keep(self, task: _Task, measure: Measure) -> None:
        if self._journal is not None:
            self._journal.append(measure.raw)
        task.measures.append(measure)
        self._lessons.append(measure)
        self._measured += self._phase == "search"
        if self._progress is not None:
            self._progress(Progress(measure, self._measured, self._meter.elapsed_s, self._phase))

    def _rank(self, task: _Task, schedules: Sequence[Schedule]) -> list[Schedule]:
        device = self._runner.device
        if self._ranker is not None:
            return self._ranker.rank(task.problem, schedules, device)
        return sorted(schedules, key=lambda s: (estimate_us(task.problem, s, device), s))

    def _learn(self) -> None:
        if self._options.learn and len(self._lessons) >= max(LEAST_MEASURES, RELEARN * self._learned):
            self._learned = len(self._lessons)
            try:
                self._ranker = train(self._lessons, self._runner.device, self._options.seed)
            except BadInput:
                # Most of the measures failed: there is not enough to learn from yet.
                return

    def _incumbent(self, problem: Problem) -> list[Schedule]:
        return [self._incumbents[problem]] if problem in self._incumbents else []

    def _transfers(self, problem: Problem) -> list[Schedule]:
        """The best schedules of the nearest problems of this kind that were measured before."""
        groups: dict[Problem, list[Measure]] = {}
        for measure in self._lessons:
            if measure.problem != problem and measure.problem.kind == problem.kind:
                groups.setdefault(measure.problem, []).append(measure)
        nearest = sorted(groups, key=lambda other: (distance(problem, other), other))[:TRANSFERS]
        ranked = [sorted((value, s) for s, value in costs(groups[other]).items()) for other in nearest]
        return [best[0][1] for best in ranked if best]

    def _share(self, task: _Task) -> None:
        """Let a problem try what its nearest siblings like best by now: their kernels are compiled."""
        siblings = [
            other for other in self._tasks.values() if other is not task and other.problem.kind == task.problem.kind
        ]
        siblings.sort(key=lambda other: (distance(task.problem, other.problem), other.problem))
        task.proposer.add_transfers(s for other in siblings[:TRANSFERS] for s in other.proposer.best(1))

    def _finals(self) -> None:
        """Race the best of each problem, and let the winners meet cuBLAS and the incumbent."""
        self._phase = "finals"
        for task in self._tasks.values():
            if not self._meter.time_left:
                return
            entrants = task.proposer.best(FINALISTS)
            if not entrants:
                continue
            keep = partial(self._keep, task)
            finalists = race(self._runner, task.problem, entrants, LAST, keep)
            incumbent = self._incumbents.get(task.problem)
            task.winner = shootout(self._runner, task.problem, finalists, incumbent, keep)

    def _summary(self, known: int, interrupted: bool) -> Summary:
        winners = {}
        failed = {}
        for task in self._tasks.values():
            winner = task.winner or cheapest(task.measures)
            if winner is not None:
                winners[task.problem] = winner
            elif task.measures:
                first = task.measures[0]
                failed[task.problem] = f"{first.schedule}: {first.status} {first.raw.get('reason', '')}".rstrip()
            else:
                failed[task.problem] = "nothing was measured"
        return Summary(winners, failed, self._measured, known, self._meter.elapsed_s, interrupted)


def cheapest(measures: Iterable[Measure]) -> Measure | None:
    """The last measure of the schedule that costs least; None when none is correct."""
    measures = list(measures)
    cost_of = costs(measures)
    if not cost_of:
        return None
    best = min(cost_of, key=lambda s: (cost_of[s], s))
    return next(m for m in reversed(measures) if m.schedule == best and m.status == "correct")
