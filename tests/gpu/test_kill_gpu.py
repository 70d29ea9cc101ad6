"""A tuner on a real GPU, killed in the middle. In a file of its own: nobody else may hold the GPU meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tileseek.heuristics.journal import read_journal
from tileseek.measure import lock
from tileseek.measure.gpus import hopper
from tileseek.measure.nvml import Nvml
from tileseek.space import BadInput

pytestmark = pytest.mark.gpu

TUNE = ["tune", "1024", "1024", "1024", "--measurements", "30", "--out"]


def wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(otherwise)
        time.sleep(0.1)


def is_free(uuid: str) -> bool:
    try:
        os.close(lock.acquire(uuid))
    except BadInput:
        return False
    return True


@pytest.mark.timeout(3600)
def test_a_tuner_killed_at_random_moments_leaves_no_process_and_loses_nothing(tmp_path: Path) -> None:
    uuid = hopper().uuid
    nvml = Nvml(uuid)
    before = nvml.compute_processes()
    rng = random.Random(0)
    journal = tmp_path / "journal.jsonl"
    command = [sys.executable, "-m", "tileseek", *TUNE, str(tmp_path)]
    known = 0
    for _ in range(int(os.environ.get("KILLS", "3"))):
        tuner = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(2, 14))
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
        wait_until(lambda: is_free(uuid), "a worker holds the GPU's lock")
        wait_until(lambda: nvml.compute_processes() <= before, "a process is left on the GPU")
        contents = read_journal(journal) if journal.exists() else None
        now = len(contents.measures) if contents else 0
        assert now >= known, "what was measured stays"
        known = now
    subprocess.run(command, check=True, capture_output=True)
    screened = [m for m in read_journal(journal).measures if m.policy.startswith("screen")]
    assert len({(m.problem, m.schedule) for m in screened}) == len(screened), "nothing is measured twice"
    assert (tmp_path / "table.json").exists()
