"""Findings of `tileseek doctor`: each that is not well says what to do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from journals import ENV, FIRST, contents, measured
from tileseek.codegen.cache import Cache, Entry
from tileseek.codegen.source import GENERATOR_VERSION
from tileseek.cost_model.predictor import PREDICTOR_VERSION
from tileseek.heuristics.journal import Journal
from tileseek.heuristics.table import build_table
from tileseek.measure import lock
from tileseek.measure.gpus import Gpu
from tileseek.measure.nvml import Reading
from tileseek.space import H200, Problem

from tileseek import health

P = Problem(4096, 4096, 4096)


class FakeBoard:
    def __init__(self, **changes: Any) -> None:
        self.reading = Reading(power_w=75.0, sm_mhz=1980, temperature_c=35, throttle=1)
        self.others, self.free, self.mhz = 0, 140 << 30, 1980
        for name, value in changes.items():
            setattr(self, name, value)

    def read(self) -> Reading:
        return self.reading

    def driver(self) -> str:
        return "580.1"

    def compute_processes(self) -> int:
        return self.others

    def free_bytes(self) -> int:
        return self.free

    def max_sm_mhz(self) -> int:
        return self.mhz

    def power_limit_w(self) -> float:
        return 700.0


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    gpu = Gpu(0, f"FAKE-doctor-{os.getpid()}", "NVIDIA H200", "9.0", 132, 141 << 30)
    yield gpu
    lock.lock_path(gpu.uuid).unlink(missing_ok=True)


def advice(found: Iterator[health.Finding]) -> list[str]:
    return [finding.advice for finding in found if not finding.ok]


def test_a_gpu_in_good_order_needs_nothing(gpu: Gpu) -> None:
    found = list(health.check_gpu(gpu, FakeBoard()))
    assert advice(iter(found)) == []
    assert [finding.about for finding in found] == [f"GPU 0: {word}" for word in ("driver", "use", "memory", "clocks")]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"others": 2}, "end them before measuring"),
        ({"free": 70 << 30}, "end what holds the rest"),
        ({"reading": Reading(400.0, 1200, 80, 0x20)}, "slowed down by heat"),
        ({"reading": Reading(400.0, 1200, 60, 0x80)}, "power brake"),
        ({"reading": Reading(75.0, 1980, 88, 1)}, "let it cool down"),
        ({"reading": Reading(75.0, 1200, 35, 2)}, "nvidia-smi -rac"),
        ({"mhz": 1785}, "ends at 1785 MHz"),
    ],
)
def test_what_spoils_measuring_is_found(gpu: Gpu, changes: dict[str, Any], words: str) -> None:
    (todo,) = advice(health.check_gpu(gpu, FakeBoard(**changes)))
    assert words in todo


def test_a_gpu_that_is_measured_on_is_in_use(gpu: Gpu) -> None:
    descriptor = lock.acquire(gpu.uuid)
    try:
        assert advice(health.check_gpu(gpu, FakeBoard())) == [
            "wait until it is done: one process measures on a GPU at a time"
        ]
    finally:
        os.close(descriptor)


def test_a_table_of_another_compiler_or_generator_is_stale() -> None:
    env = {**ENV, "generator": GENERATOR_VERSION, "compiler": "nvrtc 13.0.88"}
    table = build_table(contents([measured(P, FIRST, 9.0, 1.0)], e1=env), H200)
    assert advice(health.check_compiler("nvrtc 13.0.88", table)) == []
    assert len(advice(health.check_compiler("nvrtc 13.0.99", table))) == 1
    assert len(advice(health.check_compiler("nvrtc 13.0.88", replace(table, generator="0")))) == 1
    assert "tileseek[search]" in advice(health.check_compiler("", table))[0]


def test_a_predictor_of_other_features_is_found() -> None:
    table = build_table(contents([measured(P, FIRST, 9.0, 1.0)], e1=ENV), H200)
    other = replace(table, predictor={"version": PREDICTOR_VERSION, "features": ["waves"], "bias": 0.0, "members": []})
    added = set(health.check_compiler("", other)) - set(health.check_compiler("", table))
    assert [finding.advice for finding in added if "missing, such as log_m" in finding.detail]


def test_damaged_kernels_are_counted(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for key in ("aa1", "bb2", "cc3"):
        cache.put(key, Entry(b"cubin", {"status": "ok"}))
    assert cache.keys() == ["aa1", "bb2", "cc3"]
    (tmp_path / "kernels" / "bb" / "bb2.cubin").write_bytes(b"cut")
    found = list(health.check_cache(cache))
    assert "3 kernels, 1 of 3 damaged" in found[0].detail
    assert "compiled again" in found[0].advice


def test_a_journal_tells_what_is_lost_and_what_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    line = {
        "kind": "measure",
        "problem": P.to_json(),
        "schedule": FIRST.to_json(),
        "status": "correct",
        "median_us": 9.0,
        "times_us": [9.0],
    }
    with Journal(path) as journal:
        for env, generator, compiler in (
            ("now", GENERATOR_VERSION, "c1"),
            ("old", "0", "c1"),
            ("other", GENERATOR_VERSION, "c0"),
        ):
            journal.append(
                {"kind": "env", "env": env, "gpu": "NVIDIA H200", "generator": generator, "compiler": compiler}
            )
            journal.append({**line, "env": env})
    found = list(health.check_journal(path, "c1"))
    assert found[0].ok
    assert f"stale here: 1 of generator 0 with c1, 1 of generator {GENERATOR_VERSION} with c0" in found[1].detail
    assert found[1].ok, "the problem has a time of today"
    path.write_bytes(path.read_bytes()[:-20])
    damaged = list(health.check_journal(path, ""))
    assert "1 lines unreadable" in damaged[0].detail and not damaged[0].ok
    assert "stale here: 1 of" in damaged[1].detail
    beside = list(health.check_journal(path, "c2"))
    assert beside[1].advice == "1 of its problems have no times of today: tune them again"


def test_the_command_prints_findings_and_what_to_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings")
    from tileseek.commands import doctor

    (tmp_path / "journal.jsonl").write_text("torn")
    doctor.command([tmp_path], as_json=True)
    findings = json.loads(capsys.readouterr().out)["findings"]
    (journal,) = [finding for finding in findings if finding["about"].startswith("journal")]
    assert not journal["ok"] and journal["advice"]
    doctor.command([tmp_path])
    assert "What to do:" in capsys.readouterr().out
