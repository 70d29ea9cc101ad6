"""(problem, schedule) -> an audited cubin, through the cache: one at a time here, or many in worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType

from ..space import BadInput, Problem, Schedule
from .audit import AUDIT_VERSION, Audit, audit_kernel
from .cache import Cache, Entry, content_key
from .limits import worker_limit
from .nvrtc import OPTIONS, compile_source, compiler_version
from .process import die_with_parent
from .source import GENERATOR_VERSION, generate

__all__ = ["TIMEOUT_S", "CompilePool", "CompiledKernel", "compile_kernel", "compiler_version"]

TIMEOUT_S = 60.0
"""Seconds after which a compilation is given up; half a second is usual."""

START_S = 30.0
"""Seconds a worker process may take to start."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What became of one kernel."""

    status: str
    """`ok`; `compile`: no cubin could be made; `audit`: rejected by the audit; `timeout`."""
    cubin: bytes
    """Empty unless `ok`."""
    entry: str
    audit: Audit | None
    """None when there was nothing to audit."""
    reason: str
    """Why it is not `ok`."""
    seconds: float
    """Time that compiling and auditing took, whenever that was."""
    key: str
    """Of the cache entry; empty when no source could be generated."""
    cached: bool
    """Nothing was compiled for this call."""


@dataclass(frozen=True, slots=True)
class _Task:
    """One source to compile, and what its audit must know."""

    problem: Problem
    schedule: Schedule
    text: str
    entry: str
    key: str


def compile_kernel(problem: Problem, schedule: Schedule, cache: Cache | None = None) -> CompiledKernel:
    """Compile and audit the kernel of `schedule` in this process, or take it from `cache` (default: the user's).

    A kernel that is bad in any way is a status, not an exception.

    Raises:
        BadInput: NVRTC is not installed, or the cache directory cannot be used.
    """
    cache = cache or Cache()
    task = _prepare(problem, schedule)
    if isinstance(task, CompiledKernel):
        return task
    return _lookup(cache, task) or _build(cache, task, patience_s=TIMEOUT_S)


class CompilePool:
    """Worker processes that compile; use it as a context manager.

    A kernel that takes longer than `timeout_s` is killed and remembered as a `timeout`; one that crashes its
    process costs only itself. Workers see no GPU, and end when this process, or the thread that calls
    `compile_many`, ends in whatever way.

    Args:
        workers: most processes at once; never more than cores and free memory allow.

    Raises:
        BadInput: `workers` is less than 1, NVRTC is not installed, or the cache directory cannot be used.
    """

    def __init__(self, workers: int | None = None, *, timeout_s: float = TIMEOUT_S, cache: Cache | None = None) -> None:
        if workers is not None and workers < 1:
            raise BadInput(f"{workers} compile workers: valid is 1 or more")
        compiler_version()
        limit = worker_limit()
        self.size = min(workers, limit) if workers is not None else limit
        self.cache = cache or Cache()
        self._timeout_s = timeout_s
        self._workers: list[_Worker] = []
        self._closed = False

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, whatever they are doing, and for good: a `compile_many` in another thread raises."""
        self._closed = True
        for worker in tuple(self._workers):
            worker.kill()

    def compile_many(
        self,
        pairs: Sequence[tuple[Problem, Schedule]],
        on_done: Callable[[int, CompiledKernel], None] | None = None,
    ) -> list[CompiledKernel]:
        """The kernels of `pairs`, in their order. Pairs with one source are compiled once.

        `on_done` is called with the index of a pair as soon as its kernel is there. To be called by one thread at
        a time.

        Raises:
            RuntimeError: the pool is closed, or was while this ran.
        """
        self._check_open()
        results: dict[int, CompiledKernel] = {}

        def finish(indices: Sequence[int], kernel: CompiledKernel) -> None:
            for index in indices:
                results[index] = kernel
                if on_done is not None:
                    on_done(index, kernel)

        try:
            same: dict[tuple[object, Schedule], list[int]] = {}
            for index, (problem, schedule) in enumerate(pairs):
                same.setdefault((problem.kind, schedule.kernel), []).append(index)
            tasks: dict[str, _Task] = {}
            askers: dict[str, list[int]] = {}
            for indices in same.values():
                task = _prepare(*pairs[indices[0]])
                if isinstance(task, CompiledKernel):
                    finish(indices, task)
                elif hit := _lookup(self.cache, task):
                    finish(indices, hit)
                else:
                    tasks[task.key] = task
                    askers.setdefault(task.key, []).extend(indices)
            self._run(tasks, lambda kernel: finish(askers[kernel.key], kernel))
        except BaseException:
            # An interrupt, or an error of `on_done`: nothing goes on in the background.
            while self._workers:
                self._workers.pop().kill()
            raise
        return [results[index] for index in range(len(pairs))]

    def _run(self, tasks: dict[str, _Task], finish: Callable[[CompiledKernel], None]) -> None:
        waiting = deque(tasks.values())
        while waiting or any(worker.task for worker in self._workers):
            self._check_open()
            while waiting and (worker := self._idle_worker()) is not None:
                worker.give(waiting.popleft())
            busy = [worker for worker in self._workers if worker.task]
            next_deadline = min(worker.deadline for worker in busy)
            ready = wait([worker.connection for worker in busy], max(0.0, next_deadline - time.monotonic()))
            for worker in busy:
                if worker.connection in ready:
                    kernel = worker.receive()
                elif time.monotonic() >= worker.deadline:
                    kernel = self._give_up(worker)
                else:
                    continue
                self._check_open()
                if kernel is not None:
                    finish(kernel)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the compile pool is closed")

    def _idle_worker(self) -> _Worker | None:
        for worker in list(self._workers):
            if not worker.alive:
                self._workers.remove(worker)
            elif worker.task is None:
                return worker
        if len(self._workers) < self.size:
            self._workers.append(_Worker(self.cache.directory, self._timeout_s))
            return self._workers[-1]
        return None

    def _give_up(self, worker: _Worker) -> CompiledKernel:
        """Kill a worker that is overdue; its kernel is a `timeout`."""
        assert worker.task is not None
        kernel = _failure(worker.task, "timeout", f"compiling took more than {self._timeout_s:g} s", self._timeout_s)
        if worker.compiling:
            # Before the kill, which lets those go on that wait for the lock.
            self.cache.put(worker.task.key, _entry(kernel))
        worker.kill()
        worker.task = None
        return kernel


class _Worker:
    """One worker process as its parent sees it."""

    def __init__(self, cache_directory: Path, timeout_s: float) -> None:
        self.connection, theirs = Pipe()
        self.task: _Task | None = None
        self.compiling = False
        self.deadline = 0.0
        self._timeout_s = timeout_s
        arguments = (theirs.fileno(), os.getpid(), str(cache_directory), timeout_s)
        # Not multiprocessing's spawn, which runs the user's main module again in every worker.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import _serve; _serve{arguments!r}"],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the parent only
        )
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def give(self, task: _Task) -> None:
        """Hand over a task. Until compiling starts the worker may also have to start, and to wait for a lock."""
        self.task = task
        self.compiling = False
        self.deadline = time.monotonic() + START_S + 2 * self._timeout_s
        try:
            self.connection.send(task)
        except OSError:
            self.deadline = 0.0  # it is dead, which `receive` reports

    def receive(self) -> CompiledKernel | None:
        """The worker's result; None when it only says that compiling starts."""
        assert self.task is not None
        task = self.task
        try:
            message: CompiledKernel | None = self.connection.recv()
        except (EOFError, OSError):
            self.kill()
            self.task = None
            return _failure(task, "compile", f"the compiler process died with status {self._process.returncode}", 0.0)
        if message is None:
            self.compiling = True
            self.deadline = time.monotonic() + self._timeout_s
        else:
            self.task = None
        return message

    def kill(self) -> None:
        """End the process; the connection then reads as closed."""
        self._process.kill()
        self._process.wait()


def _serve(descriptor: int, parent: int, cache_directory: str, timeout_s: float) -> None:
    """A worker process: compile what comes, until the parent closes the connection or ends."""
    die_with_parent(parent)
    connection = Connection(descriptor)
    cache = Cache(Path(cache_directory))
    while True:
        try:
            task: _Task = connection.recv()
        except EOFError:
            return
        connection.send(_build(cache, task, patience_s=timeout_s, on_start=lambda: connection.send(None)))


def _prepare(problem: Problem, schedule: Schedule) -> _Task | CompiledKernel:
    """The task of a pair, or the failure of a generator that raised."""
    try:
        source = generate(problem, schedule)
    except Exception as error:  # whatever it is, it concerns this candidate only
        return CompiledKernel("compile", b"", "", None, _words("generating the source", error), 0.0, "", False)
    key = content_key(source.text, *OPTIONS, compiler_version(), GENERATOR_VERSION, AUDIT_VERSION)
    return _Task(problem, schedule, source.text, source.entry, key)


def _lookup(cache: Cache, task: _Task) -> CompiledKernel | None:
    """The kernel as the cache has it."""
    entry = cache.get(task.key)
    if entry is None:
        return None
    record = entry.record
    try:
        audit = None if record["audit"] is None else Audit.from_json(record["audit"])
        return CompiledKernel(
            record["status"], entry.cubin, record["entry"], audit, record["reason"], record["seconds"], task.key, True
        )
    except (KeyError, ValueError):
        cache.corrupt.add(task.key)
        return None


def _entry(kernel: CompiledKernel) -> Entry:
    """The inverse of `_lookup`."""
    record = asdict(replace(kernel, cubin=b""))
    for name in ("cubin", "key", "cached"):
        del record[name]
    return Entry(kernel.cubin, {**record, "compiler": compiler_version()})


def _build(cache: Cache, task: _Task, patience_s: float, on_start: Callable[[], None] = lambda: None) -> CompiledKernel:
    """Compile, audit and store a kernel that is not in the cache, unless another process does it first."""
    with cache.lock(task.key, patience_s):
        if hit := _lookup(cache, task):
            return hit
        on_start()
        start = time.perf_counter()
        try:
            kernel = _compile(task)
        except Exception as error:  # whatever it is, it concerns this candidate only
            # Not stored: it says nothing certain about the source.
            return _failure(task, "compile", _words("compiling", error), time.perf_counter() - start)
        kernel = replace(kernel, seconds=round(time.perf_counter() - start, 4))
        cache.put(task.key, _entry(kernel))
        return kernel


def _compile(task: _Task) -> CompiledKernel:
    compilation = compile_source(task.text)
    if not compilation.cubin:
        return _failure(task, "compile", _first_error(compilation.log), 0.0)
    audit = audit_kernel(task.problem, task.schedule, compilation.log, compilation.cubin, task.entry)
    if audit.problems:
        return replace(_failure(task, "audit", "; ".join(audit.problems), 0.0), audit=audit)
    return CompiledKernel("ok", compilation.cubin, task.entry, audit, "", 0.0, task.key, False)


def _failure(task: _Task, status: str, reason: str, seconds: float) -> CompiledKernel:
    return CompiledKernel(status, b"", task.entry, None, reason, seconds, task.key, False)


def _first_error(log: str) -> str:
    lines = log.splitlines() or ["no message from the compiler"]
    return next((line for line in lines if "error" in line or "fatal" in line), lines[0]).strip()


def _words(what: str, error: Exception) -> str:
    return f"{what}: {type(error).__name__}: {error}"
