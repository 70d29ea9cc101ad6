"""The process that owns the CUDA context: it may crash or hang, its supervisor starts another.

Run as `python -m tileseek.measure.worker FD PARENT_PID MODULE:CLASS`.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from multiprocessing.connection import Connection

from ..codegen.process import die_with_parent
from ..space import BadInput
from .protocol import (
    Backend,
    Broken,
    Contestant,
    ContextLost,
    Done,
    Finished,
    Job,
    NoMemory,
    Ready,
    Refused,
    Rejected,
    Request,
    Session,
    Stage,
    Tell,
    Verified,
)
from .results import Result
from .scoring import score

PREPARE_S = 300.0
"""Longest silence while operands and references of one problem are made."""


def run(backend: Backend, request: Request, tell: Tell) -> None:
    """Measure the jobs of one request: verify each alone, time all together, verify again.

    Raises:
        ContextLost: the CUDA context is gone.
    """
    tell(Stage("prepare", None, PREPARE_S))
    try:
        session = backend.open(request.problem, request.policy)
    except NoMemory as error:
        _reject_all(request, Rejected("memory", str(error)), tell)
    except Rejected as error:
        # Nothing can be compared on this problem; other problems can.
        _reject_all(request, Rejected(error.status, f"cuBLAS itself: {error.reason}"), tell)
    else:
        _run_session(session, request, tell)
        session.close()
    tell(Done())


def _run_session(session: Session, request: Request, tell: Tell) -> None:
    allowance = request.policy.timeout_s
    standing: list[tuple[Job, Contestant]] = []
    for job in request.jobs:
        tell(Stage("verify", job.index, allowance))
        try:
            contestant = session.verify(job.candidate, job.check)
        except Rejected as error:
            _reject(job, error, tell)
        except ContextLost:
            raise
        except Exception as error:  # whatever is wrong with one candidate, the others go on
            _reject(job, Rejected("runtime", f"{type(error).__name__}: {error}"), tell)
        else:
            tell(Verified(job.index, contestant.check))
            standing.append((job, contestant))
    if not standing:
        return

    def alive(seconds: float) -> None:
        tell(Stage("time", None, seconds))

    alive(allowance)
    field = session.race([contestant for _, contestant in standing], alive)
    for job, contestant in standing:
        tell(Stage("verify again", job.index, allowance))
        try:
            session.verify_again(contestant)
        except Rejected as error:
            _reject(job, error, tell)
        else:
            result = score(
                field,
                job.candidate,
                contestant.smem,
                contestant.check,
                contestant.samples(),
                contestant.energies(),
            )
            tell(Finished(job.index, result))


def _reject_all(request: Request, error: Rejected, tell: Tell) -> None:
    for job in request.jobs:
        _reject(job, error, tell)


def _reject(job: Job, error: Rejected, tell: Tell) -> None:
    candidate = job.candidate
    tell(Finished(job.index, Result(candidate.schedule, error.status, error.reason, regs=candidate.regs)))


def serve(connection: Connection, backend: Backend) -> None:
    """Answer requests until the supervisor closes the pipe."""
    tell: Tell = connection.send
    tell(Ready(backend.environment()))
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            run(backend, request, tell)
        except BadInput as error:
            tell(Refused(str(error), bad_input=True))
        except ContextLost as error:
            tell(Broken(str(error)))
            # No destructor of a lost context may run: some of them hang.
            os._exit(1)
        except Exception:
            tell(Refused(traceback.format_exc(), bad_input=False))


def main() -> None:
    """The worker process."""
    descriptor, parent, backend = sys.argv[1:]
    die_with_parent(int(parent))
    module, _, name = backend.partition(":")
    serve(Connection(int(descriptor)), getattr(importlib.import_module(module), name)())


if __name__ == "__main__":
    main()
