"""Journals survive what happens to files: crashes, cut-off lines, several writers, newer versions."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tileseek.heuristics.journal import JOURNAL_VERSION, Journal, read_journal
from tileseek.heuristics.packing import pack
from tileseek.space import BadInput, Problem, Schedule

PROBLEM = Problem(512, 1024, 2048)
SCHEDULE = Schedule("coop", 2, 128, 256, 64, 3, producer_regs=40, consumer_regs=232)


def measure_line(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "measure",
        "problem": PROBLEM.to_json(),
        "schedule": SCHEDULE.to_json(),
        "status": "correct",
        "times_us": [10.0, 11.0, 12.0],
        "median_us": 11.0,
        "ratio_to_ref": 1.02,
        "env": "e1",
        "policy": "screen-1",
        **changes,
    }


def test_lines_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "journal.jsonl"
    with Journal(path, sync=True) as journal:
        journal.append({"kind": "env", "env": "e1", "gpu": "NVIDIA H200"})
        journal.append(measure_line(extra="kept"))
        journal.append({**measure_line(status="compile", median_us=None, times_us=[]), "kind": "compile"})
    contents = read_journal(path)
    assert contents.skipped == 0
    assert contents.envs == {"e1": {"gpu": "NVIDIA H200"}}
    (measure,) = contents.measures
    assert (measure.problem, measure.schedule, measure.status) == (PROBLEM, SCHEDULE, "correct")
    assert (measure.median_us, measure.times_us, measure.ratio_to_ref) == (11.0, (10.0, 11.0, 12.0), 1.02)
    assert measure.ratio_to_best is None
    assert measure.raw["extra"] == "kept"
    assert [failed.status for failed in contents.compiles] == ["compile"]


def test_packing_keeps_the_lines_and_is_deterministic(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        for i in range(20):
            journal.append(measure_line(median_us=1.0 + i))
    contents = read_journal(path)
    pack(contents, tmp_path / "a.jsonl.gz")
    time.sleep(0.01)
    pack(contents, tmp_path / "b.jsonl.gz")
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert read_journal(tmp_path / "a.jsonl.gz") == contents


def test_packing_keeps_the_intervals_of_finals_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"kind": "env", "env": "e1", "gpu": "NVIDIA H200"})
        for policy in ("screen-1", "final-brief-2"):
            line = measure_line(policy=policy, ci95={"ratio_to_ref": [0.9, 1.1]}, clock_mhz=1493.876)
            journal.append(line | {"times_us": [10.12345, 11.0, 12.0], "check": {"norm": 0.00166145, "seeds": 1}})
        journal.append(measure_line(kind="compile", status="audit", reason="spills"))
    pack(read_journal(path), tmp_path / "a.jsonl.gz")
    kept = read_journal(tmp_path / "a.jsonl.gz")
    assert ["ci95" in measure.raw for measure in kept.measures] == [False, True]
    assert [measure.raw["clock_mhz"] for measure in kept.measures] == [1493.9, 1493.876]
    assert [measure.times_us[0] for measure in kept.measures] == [10.1, 10.12345]
    assert [measure.raw["check"]["norm"] for measure in kept.measures] == [0.00166, 0.00166145]
    assert [measure.raw["reason"] for measure in kept.compiles] == ["spills"]
    assert kept.envs == read_journal(path).envs
    with pytest.raises(BadInput, match="cannot write"):
        pack(kept, tmp_path / "nowhere" / "a.jsonl.gz")


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append(measure_line(status="correctness", check={"max_rel": math.nan}, ratio_to_ref=math.inf))
    (line,) = path.read_text().splitlines()
    obj = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} in the journal"))
    assert obj["check"]["max_rel"] is None
    assert read_journal(path).measures[0].ratio_to_ref is None


def test_cut_off_at_every_byte(tmp_path: Path) -> None:
    """Whatever a crash leaves of the last line: the lines before it stay, and the next line is whole again."""
    whole = tmp_path / "whole.jsonl"
    with Journal(whole) as journal:
        journal.append(measure_line(median_us=1.0))
        journal.append(measure_line(median_us=2.0))
    data = whole.read_bytes()
    first = data.index(b"\n") + 1
    path = tmp_path / "cut.jsonl"
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        with Journal(path) as journal:
            journal.append(measure_line(median_us=3.0))
        contents = read_journal(path)
        kept = [1.0] * (size >= first - 1) + [2.0] * (size >= len(data) - 1) + [3.0]
        assert [measure.median_us for measure in contents.measures] == kept, size
        assert contents.skipped == int(size not in (0, first - 1, first, len(data) - 1, len(data))), size


@pytest.mark.parametrize("size", [0, 5, 40, 200, -9, -1])
def test_packed_journal_cut_off(tmp_path: Path, size: int) -> None:
    lines = [json.dumps({"v": 1, **measure_line(median_us=1.0 + i, t=os.urandom(20).hex())}) for i in range(50)]
    path = tmp_path / "journal.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode())[: size or None])
    contents = read_journal(path)
    if size == 0:
        assert (len(contents.measures), contents.skipped) == (50, 0)
    else:
        assert contents.skipped in (1, 2), "the rest, and the line that was cut through"
        assert [m.median_us for m in contents.measures] == [1.0 + i for i in range(len(contents.measures))]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "7",
        '"text"',
        "\x00\x00",
        json.dumps({"kind": "measure"}),
        json.dumps({"v": JOURNAL_VERSION + 1, **measure_line()}),
        json.dumps({"v": "1", **measure_line()}),
        json.dumps({"v": 1, "kind": "something new"}),
        json.dumps({"v": 1, **measure_line(median_us=None)}),
        json.dumps({"v": 1, **measure_line(median_us="fast")}),
        json.dumps({"v": 1, **measure_line(status=None)}),
        json.dumps({"v": 1, **measure_line(times_us=[0.0, 0.0, 0.0])}),
        json.dumps({"v": 1, **measure_line(times_us="12")}),
        json.dumps({"v": 1, **measure_line(times_us=[1e308, 1e-308, 1.0])}),
        json.dumps({"v": 1, **measure_line(median_us=1e-308)}),
        json.dumps({"v": 1, **measure_line(problem={"m": 0})}),
        json.dumps({"v": 1, **measure_line(problem={**PROBLEM.to_json(), "k": -1})}),
        json.dumps({"v": 1, **measure_line(schedule={**SCHEDULE.to_json(), "unknown": 1})}),
        json.dumps({"v": 1, **measure_line(schedule={**SCHEDULE.to_json(), "stages": "4"})}),
        *(
            json.dumps({"v": 1, **measure_line(schedule={**SCHEDULE.to_json(), **wrong})})
            for wrong in (
                {"tile_n": 0},
                {"stages": -3},
                {"ctas": -1},
                {"consumer_regs": -1},
                {"consumers": 0},
                {"multicast_kind": "turn"},
                {"dependent_launch": "never"},
                {"interleave_k": "rotate"},
                {"arrangement": "gemv", "consumers": 4, "tile_m": 1, "tile_n": 4, "tile_k": 64},
            )
        ),
        *(
            json.dumps({"v": 1, **measure_line(**{name: "much"})})
            for name in ("energy_mj", "ratio_energy", "clock_mhz", "power_w")
        ),
        json.dumps({"v": 1, **measure_line(power_w=math.nan)}),
        json.dumps({"v": 1, **measure_line(check={"norm": [-math.inf]})}),
        json.dumps({"v": 1, **measure_line(t="late")}).replace('"late"', "1e999"),
        json.dumps({"v": 1, **measure_line(status="\ud800")}),
        json.dumps({"v": 1, **measure_line(env="\ud800")}),
        json.dumps({"v": 1, **measure_line(policy="\udfff-1")}),
        json.dumps({"v": 1, "kind": "env", "env": "\ud800"}),
        json.dumps({"v": 1, "kind": "env", "env": "e1", "compiler": "nvrtc \ud800"}),
        json.dumps({"v": 1, "kind": "env", "env": "e1", "driver": "\ud800"}),
        json.dumps({"v": 1, "kind": "env", "env": 3}),
        json.dumps({"v": 1, "kind": "env", "env": "e1", "gpu": 5}),
        "[" * 100_000,
    ],
)
def test_a_line_that_cannot_be_used_is_skipped_and_counted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    good = json.dumps({"v": 1, **measure_line()})
    path.write_bytes(f"{good}\n{line}\n\n{good}\n".encode() + b"\xff\xfe\n")
    contents = read_journal(path)
    assert (len(contents.measures), contents.skipped) == (2, 2)


def test_a_whole_pair_of_surrogates_is_a_letter(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(json.dumps({"v": 1, **measure_line(policy="\N{ROCKET}-1")}))
    assert read_journal(path).measures[0].policy == "\N{ROCKET}-1"


def test_a_field_the_schedule_lacks_gets_its_default(tmp_path: Path) -> None:
    old = {name: value for name, value in SCHEDULE.to_json().items() if name != "k_zigzag"}
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append(measure_line(schedule=old))
    assert read_journal(path).measures[0].schedule == SCHEDULE


def test_unreadable_and_unwritable_paths_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        read_journal(tmp_path / "none.jsonl")
    with pytest.raises(BadInput, match="cannot read"):
        read_journal(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write"):
        Journal(tmp_path / "file" / "journal.jsonl")


WRITER = """
import sys
from tileseek.heuristics.journal import Journal
path, name, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
journal = Journal(path)
for i in range(count):
    journal.append({"kind": "env", "env": f"{name}-{i}", "padding": name * size})
"""


def test_writers_that_interleave_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, "400", "3000"]) for name in ("a", "b", "c")
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    contents = read_journal(path)
    assert contents.skipped == 0
    assert contents.envs.keys() == {f"{name}-{i}" for name in "abc" for i in range(400)}


def test_a_run_has_its_journal_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "journal.jsonl"
    with Journal(path, alone=True):
        with pytest.raises(BadInput, match=f"{path.parent} is in use by another process: valid is another folder"):
            Journal(path, alone=True)
        assert read_journal(path).skipped == 0, "readers are welcome"
    Journal(path, alone=True).close()


def test_killing_a_writer_costs_at_most_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for delay in (0.0, 0.01, 0.03):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), "a", "1000000", "20000"])
        while not path.exists() or path.stat().st_size < 100_000:
            assert writer.poll() is None
        time.sleep(delay)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(timeout=60)
        with Journal(path) as journal:
            journal.append({"kind": "env", "env": "after"})
        contents = read_journal(path)
        assert contents.skipped <= 1
        names = [name for name in contents.envs if name != "after"]
        assert names == [f"a-{i}" for i in range(len(names))]
        assert "after" in contents.envs


def test_a_full_disk_costs_the_line_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever part of a line fits on the disk: what was written before stays, and when there is space again it goes
    on."""
    path = tmp_path / "journal.jsonl"
    room = [0]
    write = os.write

    def writes_what_fits(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", writes_what_fits)
    line = measure_line(median_us=2.0)
    for fits in (0, 1, 100, len(json.dumps({"v": 1, **line}, separators=(",", ":")))):
        path.unlink(missing_ok=True)
        with Journal(path) as journal:
            room[0] = 10**6
            journal.append(measure_line(median_us=1.0))
            room[0] = fits
            with pytest.raises(OSError, match="No space left") as caught:
                journal.append(line)
            assert caught.value.filename == str(path)
            room[0] = 10**6
            journal.append(measure_line(median_us=3.0))
        contents = read_journal(path)
        # A line that lacks its newline only is whole.
        kept = [1.0, 2.0, 3.0] if fits > 100 else [1.0, 3.0]
        assert [measure.median_us for measure in contents.measures] == kept
        assert contents.skipped == int(0 < fits <= 100)


def test_the_kernel_says_that_the_disk_is_full(tmp_path: Path) -> None:
    full = tmp_path / "journal.jsonl"
    full.symlink_to("/dev/full")
    with Journal(full) as journal, pytest.raises(OSError, match="No space left"):
        journal.append(measure_line())


@pytest.mark.timeout(300)
def test_a_tuner_killed_at_random_moments_loses_nothing() -> None:
    """Two dozen kills here; `python tests/kill_campaign.py 200` for more."""
    pytest.importorskip("optuna")
    script = Path(__file__).with_name("kill_campaign.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, str(script), "24"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "'kills': 24" in done.stdout
