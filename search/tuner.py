"""The search: many problems, one budget, one journal; it ends where it is told to and goes on where it stopped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import nsmallest
from typing import Protocol, TypeVar

from ..cost_model.analytic import estimate_us
from ..cost_model.costs import by_problem, cost, costs, yardstick
from ..heuristics.journal import Journal, JournalContents, Measure
from ..heuristics.noise import Noise
from ..heuristics.query import distance
from ..heuristics.table import is_final
from ..measure.policy import FINAL, SCREEN, Policy
from ..space import FOR_TIME, BadInput, Device, Problem, Schedule, shown
from ..space.rules import DEPENDENT_LAUNCH
from ..space.schedule import vary
from .budget import Budget, Meter, gain
from .known import known_before
from .proposer import Proposer
from .race import race
from .runner import Runner
from .sampler import SAMPLERS
from .shootout import BRIEF_FINAL, FINALS, decide, final_seconds

EXPLORING_SHARE = 0.8
LEAST_EXPLORING = 0.3
"""Of a budget in seconds, usually and at least; the rest is for the final comparisons."""

FINALISTS = 8
LAST = 3
"""Schedules of a problem that race, and that meet cuBLAS in the end."""

TRANSFERS = 4
LIKED = 2
"""Nearest problems whose best schedules are tried, and how many of each."""

RACE_S = 1.5
"""What a race of them takes, about."""

CAUTION = 1.1
"""By how much longer finals may take than expected."""

HOPELESS = 100
"""Measurements without a single correct one after which a search stops: it is not the schedules that are wrong."""

LEAST_BATCH = 4
"""Schedules worth opening a problem for."""

LIMITED_FLOPS = 1e10
"""Larger problems are taken to be held back by power until one is measured."""

RELEARN = 1.5
"""The ranker is trained again when there are this many times the measures it has seen."""

LEAST_MEASURES = 80
"""With fewer measures the analytic model ranks better than one learned from them."""


class Scorer(Protocol):
    """A learned model: `cost_model.ranker`, or `cost_model.predictor`, which a table comes with."""

    def scores(self, problem: Problem, schedules: Sequence[Schedule], device: Device) -> Sequence[float]:
        """Logarithms of the expected times, up to a constant of the problem."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to search. The same options, seed and measures give the same decisions.

    Raises:
        BadInput: no sampler has that name.
    """

    seed: int = 0
    batch: int = 24
    """Schedules of one problem measured together; their compilation overlaps with the batch before."""
    sampler: str = "tpe"
    """Optuna's sampler, one of SAMPLERS."""
    learn: bool = True
    """Train the ranker on the journal as it grows."""
    finals: bool = True
    """Compare the best of each problem with cuBLAS at the end."""
    final_policy: Policy | None = None
    """How; by default the most careful of `shootout.FINALS` for which the time left is enough."""
    objective: str = FOR_TIME
    """What to tune for, one of `space.OBJECTIVES`. The models rank by time; what is measured decides."""
    noise: Noise = field(default_factory=Noise)
    """What the device resolves: differences below it are ties."""

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise BadInput(f"sampler is {shown(self.sampler)}: valid are {', '.join(SAMPLERS)}")


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

Key = TypeVar("Key")


def tune(
    problems: Sequence[Problem],
    runner: Runner,
    budget: Budget,
    *,
    journal: Journal | None = None,
    history: JournalContents | None = None,
    ranker: Scorer | None = None,
    incumbents: Mapping[Problem, Schedule] | None = None,
    options: Options | None = None,
    progress: OnProgress | None = None,
) -> Summary:
    """Search the best schedule of every problem within one budget.

    Every measure goes to `journal` at once. `history` is what is known before, by default what the journal holds:
    of it, measures made under the runner's environment are not made again, all others only teach. `ranker` has learned
    from the history; without one it is trained first. Ctrl-C ends the run with what was found.

    Raises:
        BadInput: no problems.
    """
    if not problems:
        raise BadInput("no problems to tune: valid is one or more")
    run = _Run(runner, budget, journal, history, ranker, dict(incumbents or {}), options or Options(), progress)
    return run.all(list(dict.fromkeys(problems)))


@dataclass(slots=True)
class _Task:
    """One problem of a run."""

    problem: Problem
    proposer: Proposer
    options: Options
    measures: list[Measure] = field(default_factory=list)
    stick: str = ""
    """The yardstick, fixed by the first correct measures so that the proposer's costs stay comparable."""
    curve: list[float | None] = field(default_factory=list)
    under_way: int = 0
    """Batches proposed and not yet measured."""
    winner: Measure | None = None
    fresh: int = 0
    """Measurements of this run."""

    @property
    def limited(self) -> bool:
        """Whether power holds cuBLAS back, as far as measured."""
        flags = [m.raw.get("power_limited") is True for m in self.measures if m.status == "correct"]
        return sum(flags) * 2 > len(flags) if flags else self.problem.flops > LIMITED_FLOPS

    @property
    def call_us(self) -> float:
        """The time of one call of the best, 0 when not measured."""
        return min((m.median_us for m in self.measures if m.median_us is not None), default=0.0)

    def final_seconds(self, policy: Policy) -> float:
        """About how long its final takes."""
        before = RACE_S if policy.name == FINAL.name else 0.0
        return before + final_seconds(policy, self.limited, self.call_us, LAST)

    def decided(self, device: Device) -> Measure | None:
        """The winner of a final that an earlier run made, when this one has nothing to add."""
        finals = [m for m in self.measures if is_final(m)]
        if self.fresh or not finals:
            return None
        last = [m for m in finals if m.policy == finals[-1].policy]
        # One that was cut short lacks some of its finalists, perhaps the best.
        entrants = last[-1].raw.get("entrants", len(self.proposer.best(LAST)))
        whole = isinstance(entrants, int) and len({m.schedule for m in last}) >= entrants
        return decide(last, device, self.options.noise) if whole else None

    def take(self, measures: Sequence[Measure]) -> None:
        """Learn what a batch came to."""
        if not self.stick and any(m.status == "correct" for m in measures):
            self.stick = yardstick(measures, self.options.objective)
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
        history: JournalContents | None,
        ranker: Scorer | None,
        incumbents: dict[Problem, Schedule],
        options: Options,
        progress: OnProgress | None,
    ) -> None:
        self._runner = runner
        self._journal = journal
        self._ranker = ranker
        self._incumbents = incumbents
        self._options = options
        self._screen = SCREEN.tuning_for(options.objective)
        self._progress = progress
        history, self._known = known_before(runner, journal, history, self._options.objective)
        self._before = by_problem(history.measures)
        self._relatives = _grouped(self._before, lambda problem: problem.kind)
        self._twins = _grouped(self._before, _product)
        self._liked: dict[Problem, list[Schedule]] = {}
        self._lessons: list[Measure] = list(history.measures)
        self._learned = 0 if ranker is None else len(self._lessons)
        self._phase = "search"
        self._measured = 0
        self._tasks: dict[Problem, _Task] = {}
        self._kin: dict[tuple[str, ...], list[Problem]] = {}
        self._budget = budget
        self._meter = Meter(budget, runner.now)

    def all(self, problems: Sequence[Problem]) -> Summary:
        known = 0
        self._kin = _grouped(problems, lambda problem: problem.kind)
        for index, problem in enumerate(problems):
            before = self._known.get(problem, [])
            transfers = [*self._incumbent(problem), *self._transfers(problem)]
            space = self._runner.space(problem)
            proposer = Proposer(space, self._options.seed + index, transfers, self._options.sampler)
            task = _Task(problem, proposer, self._options)
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

    @property
    def _share_of_time(self) -> float:
        """The share of the seconds that exploring may take: the rest is enough for a brief final of every problem."""
        seconds = self._budget.seconds
        if not self._options.finals or seconds is None:
            return 1.0
        policy = self._options.final_policy or BRIEF_FINAL.tuning_for(self._options.objective)
        finals = sum(task.final_seconds(policy) for task in self._tasks.values())
        return max(LEAST_EXPLORING, min(EXPLORING_SHARE, 1 - CAUTION * finals / seconds))

    def _search(self) -> None:
        """Measure batch after batch; the next one is chosen, and compiles, while the last is measured."""
        batch = self._next(0, len(self._lessons))
        if batch is not None:
            self._runner.prepare(batch[0].problem, batch[1])
        with ThreadPoolExecutor(1, thread_name_prefix="propose") as aside:
            while batch is not None:
                task, schedules = batch
                # What is planned must still be affordable: the batch before may have taken longer than expected.
                share = self._share_of_time if task.curve else 1.0
                schedules = schedules[: self._meter.affordable(len(schedules), share)]
                if not schedules:
                    return
                following = aside.submit(self._ahead, len(schedules), len(self._lessons))
                aside.submit(self._draft_ahead)
                measures = self._measure(task, schedules)
                batch = following.result()
                self._meter.count(len(schedules))
                task.under_way -= 1
                task.take(measures)
                task.mark()
                if self._hopeless:
                    return
                batch = batch or aside.submit(self._next, 0, len(self._lessons)).result()

    @property
    def _hopeless(self) -> bool:
        measures = [measure for task in self._tasks.values() for measure in task.measures]
        return len(measures) >= HOPELESS and not any(measure.status == "correct" for measure in measures)

    def _ahead(self, planned: int, lessons: int) -> tuple[_Task, list[Schedule]] | None:
        """The batch after the one of `planned` measurements under way; it begins to compile."""
        batch = self._next(planned, lessons)
        if batch is not None:
            self._runner.prepare(batch[0].problem, batch[1])
        return batch

    def _draft_ahead(self) -> None:
        """Make the draft of one more problem, so that its first batch begins to compile sooner."""
        undrafted = (task.proposer for task in self._tasks.values() if not task.proposer.drafted)
        if (proposer := next(undrafted, None)) is not None:
            proposer.draft()

    def _next(self, planned: int, lessons: int) -> tuple[_Task, list[Schedule]] | None:
        """The next batch while `planned` measurements are still to be made, when `lessons` measures are known; None
        when nothing is left to do."""
        self._learn(lessons)
        open_tasks = [task for task in self._tasks.values() if not task.proposer.exhausted]
        # A batch under way counts as made, so that a round goes to every problem first.
        open_tasks.sort(key=lambda task: -gain([*task.curve, *[None] * task.under_way]))
        waiting = sum(not task.curve and not task.under_way for task in open_tasks)
        count = self._options.batch
        if waiting:
            # Where the budget is short, every problem gets its part of it first.
            count = min(count, self._affordable(count * waiting, planned) // waiting)
            # One without a single measure would have no final either: the first few go before those.
            count = self._meter.affordable(max(LEAST_BATCH, count), 1.0, planned)
        else:
            count = self._affordable(count, planned)
        for task in open_tasks if count else ():
            self._share(task)
            schedules = task.proposer.propose(count, partial(self._score, task))
            if schedules:
                task.under_way += 1
                return task, schedules
        return None

    def _affordable(self, wanted: int, planned: int) -> int:
        return self._meter.affordable(wanted, self._share_of_time, planned)

    def _measure(self, task: _Task, schedules: Sequence[Schedule]) -> list[Measure]:
        return self._runner.measure(task.problem, schedules, self._screen, partial(self._keep, task))

    def _keep(self, task: _Task, measure: Measure, entrants: int | None = None) -> None:
        """Take what was measured, of a final with how many met in it."""
        if entrants is not None:
            measure = replace(measure, raw={**measure.raw, "entrants": entrants})
        # A replayed final finds what was recorded, which the search may have found before.
        if self._phase == "search" or all(measure.raw != known.raw for known in task.measures):
            if self._journal is not None:
                self._journal.append(measure.raw)
            task.measures.append(measure)
            task.fresh += 1
            self._lessons.append(measure)
        self._measured += self._phase == "search"
        if self._progress is not None:
            self._progress(Progress(measure, self._measured, self._meter.elapsed_s, self._phase))

    def _score(self, task: _Task, schedules: Sequence[Schedule]) -> Sequence[float]:
        device = self._runner.device
        if self._ranker is not None:
            return self._ranker.scores(task.problem, schedules, device)
        return [math.log(estimate_us(task.problem, s, device)) for s in schedules]

    def _learn(self, lessons: int) -> None:
        if self._options.learn and lessons >= max(LEAST_MEASURES, RELEARN * self._learned):
            # scikit-learn takes two seconds to import: with a ranker given it is hardly ever needed.
            from ..cost_model.ranker import train

            self._learned = lessons
            try:
                self._ranker = train(self._lessons[:lessons], self._runner.device, self._options.seed)
            except BadInput:
                # Most of the measures failed: there is not enough to learn from yet.
                return

    def _incumbent(self, problem: Problem) -> list[Schedule]:
        return [self._incumbents[problem]] if problem in self._incumbents else []

    def _transfers(self, problem: Problem) -> list[Schedule]:
        """The best schedules of the nearest problems of this kind that were measured before, here or elsewhere: itself,
        if it is among them, and others. And those of the same product with another epilogue or overlap."""
        launch = DEPENDENT_LAUNCH[problem.overlap][-1]
        twins = [other for other in self._twins.get(_product(problem), ()) if other != problem]
        nearest = _nearest(problem, self._relatives.get(problem.kind, ()))
        return [
            *(s for other in nearest for s in self._best_before(other)),
            *(vary(s, dependent_launch=launch) for other in twins for s in self._best_before(other)),
        ]

    def _best_before(self, problem: Problem) -> list[Schedule]:
        if problem not in self._liked:
            ranked = nsmallest(LIKED, ((value, s) for s, value in costs(self._before[problem]).items()))
            self._liked[problem] = [s for _, s in ranked]
        return self._liked[problem]

    def _share(self, task: _Task) -> None:
        """Let a problem try what its nearest siblings like best by now: their kernels are compiled."""
        siblings = [other for other in self._kin[task.problem.kind] if other != task.problem]
        nearest = [self._tasks[other].proposer for other in _nearest(task.problem, siblings)]
        task.proposer.add_transfers(s for proposer in nearest for s in proposer.best(LIKED))

    def _finals(self) -> None:
        """Let the best of each problem meet cuBLAS and the incumbent; where there is time, they race before."""
        self._phase = "finals"
        tasks = [task for task in self._tasks.values() if task.proposer.best(1)]
        for task in tasks:
            task.winner = task.decided(self._runner.device)
        tasks = [task for task in tasks if task.winner is None]
        options = self._options
        policy = options.final_policy or self._affordable_final(tasks)
        for task in sorted(tasks, key=lambda task: task.final_seconds(policy)):
            if not self._meter.time_left:
                return
            keep = partial(self._keep, task)
            finalists = task.proposer.best(LAST)
            if policy.name == FINAL.name:
                finalists = race(
                    self._runner,
                    task.problem,
                    task.proposer.best(FINALISTS),
                    LAST,
                    keep,
                    options.objective,
                    options.noise,
                )
            incumbent = self._incumbents.get(task.problem)
            entrants = list(dict.fromkeys([*finalists, *([incumbent] if incumbent else [])]))
            keep = partial(self._keep, task, entrants=len(entrants))
            measures = self._runner.measure(task.problem, entrants, policy, keep)
            task.winner = decide(measures, self._runner.device, options.noise, incumbent)

    def _affordable_final(self, tasks: Sequence[_Task]) -> Policy:
        """The most careful policy for which the time left is enough: one for all, so that all compare."""
        left = math.inf if self._budget.seconds is None else self._budget.seconds - self._meter.elapsed_s
        policies = [policy.tuning_for(self._options.objective) for policy in FINALS]
        for policy in policies:
            if sum(task.final_seconds(policy) for task in tasks) <= left:
                return policy
        return policies[-1]

    def _summary(self, known: int, interrupted: bool) -> Summary:
        winners = {}
        failed = {}
        for task in self._tasks.values():
            winner = task.winner or cheapest(task.measures, self._options.objective)
            if winner is not None:
                winners[task.problem] = winner
            elif task.measures:
                first = task.measures[0]
                failed[task.problem] = f"{first.schedule}: {first.status} {first.raw.get('reason', '')}".rstrip()
            else:
                failed[task.problem] = "nothing was measured"
        return Summary(winners, failed, self._measured, known, self._meter.elapsed_s, interrupted)


def _grouped(problems: Iterable[Problem], key: Callable[[Problem], Key]) -> dict[Key, list[Problem]]:
    groups: dict[Key, list[Problem]] = {}
    for problem in problems:
        groups.setdefault(key(problem), []).append(problem)
    return groups


def _product(problem: Problem) -> Problem:
    """What problems have in common that differ in the epilogue and the overlap alone."""
    return replace(problem.plain, overlap="none")


def _nearest(problem: Problem, others: Iterable[Problem]) -> list[Problem]:
    """The few of its kind from which a problem takes schedules, nearest first."""
    return nsmallest(TRANSFERS, others, key=lambda other: (distance(problem, other), other))


def cheapest(measures: Iterable[Measure], objective: str = FOR_TIME) -> Measure | None:
    """The last measure of the schedule that costs least; None when none is correct."""
    measures = list(measures)
    cost_of = costs(measures, objective)
    if not cost_of:
        return None
    best = min(cost_of, key=lambda s: (cost_of[s], s))
    return next(m for m in reversed(measures) if m.schedule == best and m.status == "correct")
