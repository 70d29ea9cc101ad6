"""Kill a tuner at random moments, over and over: python tests/kill_campaign.py KILLS [SEED]

A tuning run with a simulated GPU in a worker process of its own is killed (SIGKILL) and started again until it comes to
its end, then the next run begins, until there were enough kills. After every kill: no worker is left, the journal has
everything that was reported, and at most one measurement more. After every run: nothing was measured twice, and the
table is that of a run nobody disturbed.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # forks do not mix with threads

from tileseek.codegen import CompiledKernel
from tileseek.cost_model.draft import draft
from tileseek.heuristics.journal import Journal, Measure, read_journal
from tileseek.heuristics.table import build_table
from tileseek.measure import lock
from tileseek.measure.supervisor import Measurer
from tileseek.search.budget import Budget
from tileseek.search.runner import LiveRunner
from tileseek.search.spaces import ListedSpace
from tileseek.search.tuner import Options, Progress, tune
from tileseek.space import H200, BadInput, Problem, Schedule

PROBLEMS = [Problem(64, 4096, 4096), Problem(2048, 4096, 4096)]
SCHEDULES = {problem: draft(problem, H200, 16, 0) for problem in PROBLEMS}

LONGEST_S = 1.5
"""Kills come at a random moment of it; a run takes about two seconds."""

ORPHAN_S = 10.0


class InstantPool:
    """Compiles nothing: the simulated kernel is a time that hangs on the schedule."""

    def compile_many(self, pairs: list[tuple[Problem, Schedule]], on_done: Any) -> None:
        for index, (_, schedule) in enumerate(pairs):
            us = 100 + int(hashlib.sha256(schedule.name.encode()).hexdigest()[:4], 16) / 1000
            on_done(index, CompiledKernel("ok", b"x", f"us {us}", None, "", 0.0, "key", False))


class ListedRunner(LiveRunner):
    """A space small enough to be measured whole: then every run ends with the same table."""

    def space(self, problem: Problem) -> ListedSpace:
        return ListedSpace(problem, H200, SCHEDULES[problem])


def line(measure: Measure) -> str:
    return f"{measure.problem.key} {measure.schedule} {measure.policy}"


def run(path: Path, uuid: str, report: int) -> None:
    """One tuning run, or the rest of one; every measurement is reported once it is in the journal."""

    def acknowledge(at: Progress) -> None:
        os.write(report, f"{line(at.measure)}\n".encode())

    with (
        Measurer(backend="fake_gpu:SteadyGpu", uuid=uuid) as measurer,
        Journal(path) as journal,
        ListedRunner(InstantPool(), measurer) as runner,  # type: ignore[arg-type]
    ):
        options = Options(batch=6, learn=False)
        tune(PROBLEMS, runner, Budget(measurements=1000), journal=journal, options=options, progress=acknowledge)


def start(path: Path, uuid: str) -> tuple[int, int]:
    """The process of a run, and the pipe with its reports."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            run(path, uuid, theirs)
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    return pid, ours


def worker_is_gone(uuid: str) -> bool:
    """Whether the GPU's lock, which a worker inherits, becomes free."""
    deadline = time.monotonic() + ORPHAN_S
    while time.monotonic() < deadline:
        try:
            os.close(lock.acquire(uuid))
            return True
        except BadInput:
            time.sleep(0.01)
    return False


def read_all(descriptor: int) -> list[str]:
    with os.fdopen(descriptor, "rb") as file:
        return file.read().decode().splitlines()


def table_of(path: Path) -> str:
    return build_table(read_journal(path), H200).dumps()


def campaign(kills: int, seed: int, folder: Path) -> dict[str, int]:
    rng = random.Random(seed)
    uuid = f"FAKE-campaign-{os.getpid()}"
    pid, reports = start(folder / "calm.jsonl", uuid)
    assert os.waitpid(pid, 0)[1] == 0, "the run that nobody disturbs fails"
    read_all(reports)
    expected = table_of(folder / "calm.jsonl")
    done = runs = measured = torn = 0
    while done < kills:
        path = folder / f"{runs}.jsonl"
        finished = False
        while not finished:
            before = Counter(map(line, read_journal(path).measures)) if path.exists() else Counter()
            pid, reports = start(path, uuid)
            if done < kills:
                time.sleep(rng.uniform(0, LONGEST_S))
            finished = os.waitpid(pid, os.WNOHANG if done < kills else 0)[0] == pid
            if not finished:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                done += 1
            assert worker_is_gone(uuid), f"a worker is left {ORPHAN_S} s after kill {done}"
            known = read_journal(path).measures if path.exists() else []
            gained = Counter(map(line, known)) - before
            reported = Counter(read_all(reports))
            assert reported <= gained, f"kill {done} loses {reported - gained}"
            assert (gained - reported).total() <= 1, f"kill {done}: {gained - reported} in the journal, not reported"
        contents = read_journal(path)
        torn += contents.skipped
        screened = Counter(line(m) for m in contents.measures if m.policy.startswith("screen"))
        assert max(screened.values(), default=1) == 1, f"measured twice: {screened.most_common(1)}"
        assert table_of(path) == expected, f"the table of run {runs} is not that of a run nobody disturbed"
        measured += screened.total()
        runs += 1
    lock.lock_path(uuid).unlink(missing_ok=True)
    return {"kills": done, "runs": runs, "measurements": measured, "torn_lines": torn}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print(campaign(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, Path(name)))
