"""Who measures: a GPU, or the journal of one. A search cannot tell them apart."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self

from ..codegen import CompiledKernel, CompilePool
from ..heuristics.journal import JournalContents, Measure, measure_from_json
from ..measure.policy import Policy
from ..measure.results import Candidate, Result
from ..measure.supervisor import Measurer
from ..space import Device, Problem, Schedule
from .spaces import ListedSpace, SearchSpace, WholeSpace

OnMeasure = Callable[[Measure], None]

REPLAYED_S = 0.1
"""What replaying one measure costs on the clock of a replay: about what screening one takes of a GPU."""


class Runner(Protocol):
    """What a search needs of the world."""

    @property
    def device(self) -> Device: ...

    @property
    def env(self) -> dict[str, Any]:
        """The facts of the machine, for the journal."""

    @property
    def env_key(self) -> str:
        """The hash under which measures refer to them."""

    def now(self) -> float:
        """Seconds on the clock that budgets are counted by."""

    def space(self, problem: Problem) -> SearchSpace:
        """The schedules that can be measured on a problem."""

    def prepare(self, problem: Problem, schedules: Sequence[Schedule]) -> None:
        """Say what will be measured next; returns at once, so that compiling overlaps with measuring."""

    def measure(
        self, problem: Problem, schedules: Sequence[Schedule], policy: Policy, on_measure: OnMeasure
    ) -> list[Measure]:
        """Compile and measure, in the order given. `on_measure` gets each as soon as it is known; a schedule that
        does not become a kernel has status `compile`, `audit` or `timeout` and a raw line of kind `compile`."""


class LiveRunner:
    """Compiles in worker processes and measures on a GPU. Use as a context manager.

    Whoever makes `pool` and `measurer` closes them, after this.
    """

    def __init__(self, pool: CompilePool, measurer: Measurer) -> None:
        self._pool = pool
        self._measurer = measurer
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="compile")
        self._kernels: dict[tuple[Any, Schedule], Future[CompiledKernel]] = {}

    @property
    def device(self) -> Device:
        return self._measurer.device

    @property
    def env(self) -> dict[str, Any]:
        return self._measurer.env

    @property
    def env_key(self) -> str:
        return self._measurer.env_key

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._compiler.shutdown(cancel_futures=True)

    def now(self) -> float:
        return time.monotonic()

    def space(self, problem: Problem) -> SearchSpace:
        return WholeSpace(problem, self.device)

    def prepare(self, problem: Problem, schedules: Sequence[Schedule]) -> None:
        fresh = {s.kernel: s for s in schedules if (problem.kind, s.kernel) not in self._kernels}
        if not fresh:
            return
        futures: list[Future[CompiledKernel]] = [Future() for _ in fresh]
        self._kernels.update(((problem.kind, kernel), future) for kernel, future in zip(fresh, futures, strict=True))
        self._compiler.submit(self._compile, [(problem, s) for s in fresh.values()], futures)

    def measure(
        self, problem: Problem, schedules: Sequence[Schedule], policy: Policy, on_measure: OnMeasure
    ) -> list[Measure]:
        self.prepare(problem, schedules)
        found: dict[Schedule, Measure] = {}

        def keep(schedule: Schedule, kind: str, fields: dict[str, Any]) -> None:
            found[schedule] = self._measure(problem, schedule, kind, policy, fields)

        candidates = []
        for schedule in schedules:
            kernel = self._kernels[problem.kind, schedule.kernel].result()
            if kernel.status == "ok":
                candidates.append(Candidate.of(schedule, kernel))
            else:
                keep(schedule, "compile", {"status": kernel.status, "reason": kernel.reason})
                on_measure(found[schedule])

        def on_result(result: Result) -> None:
            keep(result.schedule, "measure", _measured(result))
            on_measure(found[result.schedule])

        if candidates:
            self._measurer.measure(problem, candidates, policy, on_result)
        return [found[schedule] for schedule in schedules]

    def _measure(
        self, problem: Problem, schedule: Schedule, kind: str, policy: Policy, fields: dict[str, Any]
    ) -> Measure:
        return measure_from_json(
            {
                "kind": kind,
                "problem": problem.to_json(),
                "schedule": schedule.to_json(),
                **fields,
                "env": self.env_key,
                "policy": policy.key,
                "gpu": self._measurer.uuid,
                "t": datetime.now(UTC).isoformat(timespec="seconds"),
            }
        )

    def _compile(self, pairs: list[tuple[Problem, Schedule]], futures: list[Future[CompiledKernel]]) -> None:
        try:
            self._pool.compile_many(pairs, lambda index, kernel: futures[index].set_result(kernel))
        except BaseException as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)


def _measured(result: Result) -> dict[str, Any]:
    """The fields of a result that say something: one that was not timed has neither times nor ratios."""
    fields = result.to_json()
    del fields["schedule"]
    return fields if result.correct else {name: value for name, value in fields.items() if value}


class ReplayRunner:
    """Measures by looking into a journal: what it holds for a problem is the whole space."""

    def __init__(self, contents: JournalContents, device: Device) -> None:
        self._device = device
        envs = Counter(measure.env for measure in contents.measures)
        original = envs.most_common(1)[0][0] if envs else ""
        self._env = {**contents.envs.get(original, {}), "replay": True}
        self._env_key = f"replay-{original}"
        self._clock = 0.0
        self._measures: dict[Problem, dict[Schedule, list[Measure]]] = {}
        for measure in contents.measures:
            self._measures.setdefault(measure.problem, {}).setdefault(measure.schedule, []).append(measure)

    @property
    def device(self) -> Device:
        return self._device

    @property
    def env(self) -> dict[str, Any]:
        return dict(self._env)

    @property
    def env_key(self) -> str:
        return self._env_key

    def now(self) -> float:
        return self._clock

    def space(self, problem: Problem) -> SearchSpace:
        return ListedSpace(problem, self.device, self._measures.get(problem, {}))

    def prepare(self, problem: Problem, schedules: Sequence[Schedule]) -> None:
        del problem, schedules

    def measure(
        self, problem: Problem, schedules: Sequence[Schedule], policy: Policy, on_measure: OnMeasure
    ) -> list[Measure]:
        found = []
        for schedule in schedules:
            self._clock += REPLAYED_S
            measure = _recorded(self._measures[problem][schedule], policy)
            found.append(replace(measure, env=self._env_key, raw={**measure.raw, "env": self._env_key}))
            on_measure(found[-1])
        return found


def _recorded(measures: list[Measure], policy: Policy) -> Measure:
    """The middle one by time, among those of the policy if there are any."""
    same = [m for m in measures if m.policy == policy.key] or measures
    timed = sorted((m for m in same if m.median_us is not None), key=lambda m: m.median_us or 0.0)
    if not timed:
        return same[-1]
    middle = statistics.median_low([m.median_us or 0.0 for m in timed])
    return next(m for m in timed if m.median_us == middle)
