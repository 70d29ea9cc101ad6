"""Measuring as others see it: a killable worker process for each GPU, and a crash that costs one candidate."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO, Any

from ..space import BadInput, Device, Problem, find_device
from . import lock
from .gpus import hopper
from .policy import Policy
from .protocol import Broken, Done, Finished, Job, Message, Ready, Refused, Request, Stage, Verified
from .results import Candidate, Result

GPU_BACKEND = "tileseek.measure.gpu:GpuBackend"

_START_S = 300.0
"""Longest start of a worker: it imports torch and creates a context, perhaps while the driver clears up a crash."""

_EXIT_S = 60.0
_STARTS_WITHOUT_A_CULPRIT = 3

OnResult = Callable[[Result], None]


class MeasureError(RuntimeError):
    """Measuring as a whole fails: no candidate is to blame."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """How a worker ended: in which stage, for which candidate (None: for none in particular)."""

    stage: str
    index: int | None
    status: str
    reason: str


class _Worker:
    """One worker process and the pipe to it."""

    def __init__(self, uuid: str, backend: str, lock_descriptor: int) -> None:
        ours, theirs = Pipe()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`)
        self._connection: Connection = ours
        environment = dict(os.environ)
        environment["CUDA_VISIBLE_DEVICES"] = uuid
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.worker", str(theirs.fileno()), str(os.getpid()), backend],
            pass_fds=(theirs.fileno(), lock_descriptor),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the supervisor, and one signal reaches the whole tree
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, request: Request) -> None:
        """Raises OSError when the worker is gone."""
        self._connection.send(request)

    def receive(self, allowance_s: float) -> Message | None:
        """The next message, None after `allowance_s` of silence; raises EOFError or OSError when the worker is gone."""
        if not self._connection.poll(allowance_s):
            return None
        message: Message = self._connection.recv()
        return message

    def end(self) -> str:
        """Kill the process and all its children, wait for them, and return how it went."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._connection.close()
        try:
            # The driver takes the context down, kernels that run included, before the process is reaped.
            code = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired as error:
            raise MeasureError(f"worker {self._process.pid} cannot be killed: the GPU is stuck") from error
        finally:
            words = self._last_words()
            self._log.close()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"{how}{': ' + words if words else ''}"

    def leave(self, patience_s: float) -> str:
        """Wait for a process that is ending by itself, then `end`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        return self.end()

    def _last_words(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4000))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


class Measurer:
    """The measuring instrument of one GPU. Use as a context manager, from one thread: the worker is tied to the life of
    the thread that made it.

    `gpu` counts as the CUDA driver does. `backend` and `uuid` replace the GPU by a simulation in tests.

    Raises:
        BadInput: there is no such GPU, another process measures on it, or it is of no known device class.
        MeasureError: the worker does not start.
    """

    def __init__(self, gpu: int = 0, backend: str = GPU_BACKEND, uuid: str | None = None) -> None:
        self.uuid = uuid or hopper(gpu).uuid
        self._backend = backend
        self._lock = lock.acquire(self.uuid)
        self._worker: _Worker | None = None
        self._env: dict[str, Any] = {}
        try:
            self._start()
            self.device: Device = find_device(str(self._env["gpu"]))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Measurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def env(self) -> dict[str, Any]:
        """The journal's `env` object: GPU, driver, libraries, generator."""
        return dict(self._env)

    @property
    def env_key(self) -> str:
        """A short hash of `env` without the GPU's UUID: GPUs of one class with the same software share results."""
        shared = {name: value for name, value in self._env.items() if name != "uuid"}
        return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:12]

    def close(self) -> None:
        """End the worker and unlock the GPU."""
        self._stop()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def measure(
        self,
        problem: Problem,
        candidates: Sequence[Candidate],
        policy: Policy,
        on_result: OnResult | None = None,
    ) -> list[Result]:
        """Verify and time `candidates` on `problem`, interleaved with each other and the references.

        Results come in the order of the candidates; `on_result` gets each as soon as it is known. A candidate that
        crashes, hangs or is wrong gets its status and leaves the others as they are. One that is implausibly fast is
        measured once more.

        Raises:
            BadInput: the problem is not one that can be measured.
            MeasureError: measuring fails for a reason that is not a candidate's.
        """
        jobs = [Job(index, candidate) for index, candidate in enumerate(candidates)]
        results = self._measure(problem, jobs, policy, on_result)
        doubtful = [job for job in jobs if results[job.index].status == "implausible"]
        if doubtful:
            results |= self._measure(problem, doubtful, policy, None)
        ordered = [results[job.index] for job in jobs]
        if on_result:
            for job in doubtful:
                on_result(results[job.index])
        return ordered

    def _measure(
        self, problem: Problem, jobs: Sequence[Job], policy: Policy, on_result: OnResult | None
    ) -> dict[int, Result]:
        results: dict[int, Result] = {}
        checks: dict[int, Any] = {}

        def finish(index: int, result: Result) -> None:
            results[index] = result
            if on_result and result.status != "implausible":
                on_result(result)

        groups = [list(jobs)]
        unexplained = 0
        while groups:
            group = [replace(job, check=checks.get(job.index)) for job in groups.pop() if job.index not in results]
            if not group:
                continue
            loss = self._attempt(Request(problem, policy, tuple(group)), finish, checks)
            if loss is None:
                continue
            culprit = next((job for job in group if job.index == loss.index), None)
            if culprit is None and len(group) == 1 and loss.stage == "time":
                culprit = group[0]
            if culprit is not None:
                candidate = culprit.candidate
                finish(culprit.index, Result(candidate.schedule, loss.status, loss.reason, regs=candidate.regs))
                groups.append(group)
            elif loss.stage == "time":
                half = len(group) // 2
                groups += [group[half:], group[:half]]
            else:
                unexplained += 1
                if unexplained == _STARTS_WITHOUT_A_CULPRIT:
                    raise MeasureError(f"the worker was lost {unexplained} times in {loss.stage}: {loss.reason}")
                groups.append(group)
        return results

    def _attempt(self, request: Request, finish: Callable[[int, Result], None], checks: dict[int, Any]) -> _Loss | None:
        """Run one request; None when the worker has come through it."""
        worker = self._worker or self._start()
        stage = Stage("start", None, request.policy.timeout_s)
        with contextlib.suppress(OSError):  # a worker that is gone shows when its answer is awaited
            worker.send(request)
        try:
            while True:
                try:
                    message = worker.receive(stage.allowance_s)
                except (EOFError, OSError):
                    self._worker = None
                    how = worker.leave(1.0)
                    return _Loss(stage.name, stage.index, "runtime", f"the worker ended in {stage.name} ({how})")
                match message:
                    case None:
                        self._stop()
                        return _Loss(stage.name, stage.index, "timeout", f"no answer in {stage.allowance_s:.0f} s")
                    case Stage():
                        stage = message
                    case Verified(index, check):
                        checks[index] = check
                    case Finished(index, result):
                        finish(index, result)
                    case Broken(reason):
                        self._stop()
                        return _Loss(stage.name, stage.index, "runtime", reason)
                    case Refused(reason, bad_input):
                        raise BadInput(reason) if bad_input else MeasureError(reason)
                    case Done():
                        return None
                    case Ready():
                        raise MeasureError("the worker says that it is ready in the middle of a request")
        except BaseException:
            # Also Ctrl-C and errors of the caller's callback: the worker is in the middle of an answer.
            self._stop()
            raise

    def _start(self) -> _Worker:
        worker = self._worker = _Worker(self.uuid, self._backend, self._lock)
        deadline = time.monotonic() + _START_S
        try:
            message = worker.receive(deadline - time.monotonic())
        except (EOFError, OSError):
            self._worker = None
            raise MeasureError(f"the worker does not start ({worker.leave(1.0)})") from None
        if not isinstance(message, Ready):
            self._stop()
            raise MeasureError(f"the worker does not start: no answer in {_START_S:.0f} s")
        self._env = message.env
        return worker

    def _stop(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            worker.end()
