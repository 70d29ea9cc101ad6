"""The road map: pairs that differ in one choice, measured in one race, and the report of what they show."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from journals import FIRST, SECOND, measured
from tileseek.codegen import CompiledKernel
from tileseek.codegen.compiler import compile_kernel
from tileseek.codegen.invariants import INVARIANTS
from tileseek.heuristics.journal import read_journal
from tileseek.heuristics.roadmap_report import roadmap_report, verdict
from tileseek.measure import gpus
from tileseek.measure.results import Candidate, Result
from tileseek.search.ablation import ABLATION, pair_row
from tileseek.search.roadmap import PROBLEMS, ROWS, Pair, audit_sample, plan
from tileseek.space import H200, BadInput, Problem, violations
from toolchain import OVERFULL, PROBLEM, SMALL, SPLIT

from tileseek import cli
from tileseek.api import load_table


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return [each for each in plan(load_table(device=H200), H200) if isinstance(each, Pair)]


def test_every_row_has_pairs_that_can_run(pairs: list[Pair]) -> None:
    assert {id(pair.row) for pair in pairs} == {id(row) for row in ROWS}
    assert {pair.problem_name for pair in pairs} == set(PROBLEMS)
    for pair in pairs:
        assert violations(pair.problem, pair.on, H200) == violations(pair.problem, pair.off, H200) == []
    assert len({pair.key for pair in pairs}) == len(pairs)


def test_pairs_differ_in_the_choice_and_in_what_they_name(pairs: list[Pair]) -> None:
    for pair in pairs:
        on, off = pair.on.to_json(), pair.off.to_json()
        different = {name for name in on if on[name] != off[name]}
        assert all(on[name] == value for name, value in pair.on_changes.items())
        assert all(off[name] == value for name, value in pair.row.off.items())
        assert different & {*pair.on_changes, *pair.row.off}, "the choice makes a difference"
        named = {words.split()[0] for words in pair.adjusted.split(", ") if words}
        assert different - {*pair.on_changes, *pair.row.off} == named
        assert len(named) <= 2, f"{pair.key} compares more than one choice: {pair.adjusted}"


def test_unknown_row_is_refused() -> None:
    with pytest.raises(BadInput, match="row is 'K9': valid are K3, "):
        plan(load_table(device=H200), H200, ["K3", "K9"])


def test_audit_sample_is_valid_and_the_same_each_time() -> None:
    drawn = audit_sample(H200, 40)
    assert drawn == audit_sample(H200, 40)
    assert all(violations(problem, schedule, H200) == [] for problem, schedule in drawn)
    assert len({problem.kind for problem, _ in drawn}) == 40


def timed(schedule: Any, times: Sequence[float], clocks: Sequence[float], **raw: Any) -> Any:
    facts = {"clocks_mhz": list(clocks), "rounds": list(range(len(times))), "ref_us": 12.0, "energy_mj": 6.0, **raw}
    return measured(PROBLEM, schedule, sorted(times)[len(times) // 2], times_us=tuple(times), raw=facts)


def test_a_pair_compares_round_by_round(pairs: list[Pair]) -> None:
    on = timed(FIRST, [10.0, 20.0, 30.0], [1000.0, 1000.0, 1000.0], power_limited=True)
    off = timed(SECOND, [11.0, 24.0, 33.0], [1000.0, 500.0, 900.0], energy_mj=5.4)
    row = pair_row(pairs[0], on, off)
    assert row["ratio"] == pytest.approx(1.1)
    assert row["ci95"]["ratio"] == pytest.approx([1.1, 1.2])
    assert row["ratio_cycles"] == pytest.approx(0.99)
    assert row["ratio_energy"] == pytest.approx(0.9)
    assert verdict(row) == "same", "power limits, and cycles do not tell them apart"
    assert verdict({**row, "power_limited": False}) == "helps"
    tiny = {**row, "ratio_cycles": 1.001, "ci95": {"ratio": None, "ratio_cycles": [1.0005, 1.0015]}}
    assert verdict(tiny) == "same", "less than measuring resolves"


def test_a_round_that_one_sat_out_counts_for_neither(pairs: list[Pair]) -> None:
    on = timed(FIRST, [10.0, 30.0], [1.0, 1.0], rounds=[0, 2])
    off = timed(SECOND, [20.0, 27.0], [1.0, 1.0], rounds=[1, 2])
    row = pair_row(pairs[0], on, off)
    assert (row["rounds"], row["ratio"], verdict(row)) == (1, 0.9, "hurts")


def test_a_pair_without_both_has_no_ratio(pairs: list[Pair]) -> None:
    right = timed(FIRST, [10.0, 10.0], [1.0, 1.0])
    wrong = measured(PROBLEM, SECOND, 0.0, status="timeout", median_us=None, times_us=(), raw={"reason": "hung"})
    other_race = timed(SECOND, [10.0, 11.0], [1.0, 1.0], ref_us=12.5)
    for row in (pair_row(pairs[0], right, wrong), pair_row(pairs[0], right, other_race)):
        assert (row["ratio"], row["ratio_energy"], row["ci95"]["ratio"], verdict(row)) == (None, None, None, "")
    assert "off: timeout hung" in report([pair_row(pairs[0], right, wrong)])


def report(rows: list[dict[str, Any]]) -> str:
    invariants = {"kernels": 2, "rejected": {"bad": "spills"}, "rows": []}
    return roadmap_report(
        {"env": {"gpu": "NVIDIA H200"}, "policy": {"key": "p-1"}, "command": "tileseek roadmap", "date": "2026-11-30",
         "pairs": rows, "impossible": [], "invariants": invariants}
    )  # fmt: skip


def test_invariants_are_numbers_of_audited_kernels() -> None:
    audits = [compile_kernel(PROBLEM, schedule).audit for schedule in (SMALL, SPLIT)]
    accepted = [audit for audit in audits if audit is not None]
    facts = {each.id: each.facts(accepted) for each in INVARIANTS}
    assert facts["K1"] == {"r2ur": "0 to 0"}
    assert facts["K4"] == {name: "1 to 1" if name in ("arrive", "gsb0", "depbar") else "0 to 0" for name in facts["K4"]}
    assert facts["R2"] == {"most spill_bytes": 0, "most stack_bytes": 0, "most local": 0}
    assert facts["K2"]["beyond 4 for each wgmma, most"] <= facts["K2"]["allowed"]
    spilled = compile_kernel(PROBLEM, OVERFULL).audit
    assert spilled is not None
    worse = {each.id: each.facts([*accepted, spilled]) for each in INVARIANTS}
    assert worse["R2"]["most spill_bytes"] > 0
    assert worse["K4"]["gsb0"] != facts["K4"]["gsb0"]


# The command


class Pool:
    """Compiles nothing: every kernel is accepted."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def compile_many(
        self, pairs: Sequence[Any], on_done: Callable[[int, CompiledKernel], None]
    ) -> list[CompiledKernel]:
        kernel = CompiledKernel("ok", b"x", "entry", None, "", 0.1, "key", False)
        for index in range(len(pairs)):
            on_done(index, kernel)
        return [kernel] * len(pairs)


class Instrument:
    """A group in flight takes 5 % off the time. Ctrl-C comes with the second problem."""

    device = H200
    env: ClassVar = {"gpu": "NVIDIA H200", "generator": "2"}
    env_key, uuid = "env-1", "GPU-0"
    races: ClassVar[list[Problem]] = []

    def __init__(self, gpu: int) -> None:
        pass

    def __enter__(self) -> Instrument:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(
        self, problem: Problem, candidates: list[Candidate], policy: Any, on_result: Callable[[Result], None]
    ) -> list[Result]:
        if len(self.races) == 1 and problem not in self.races:
            self.races.append(problem)
            raise KeyboardInterrupt
        self.races.append(problem)
        results = []
        for candidate in candidates:
            times = (9.5 if candidate.schedule.mma_in_flight else 10.0,) * policy.rounds
            clocks = (1500.0,) * policy.rounds
            rounds = tuple(range(policy.rounds))
            own = {"times_us": times, "clocks_mhz": clocks, "rounds": rounds, "median_us": times[0]}
            results.append(Result(candidate.schedule, "correct", **own))
            on_result(results[-1])
        return results


def test_roadmap_measures_stops_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tileseek.measure.supervisor.Measurer", Instrument)
    monkeypatch.setattr("tileseek.codegen.CompilePool", Pool)
    monkeypatch.setattr("tileseek.commands.roadmap.hopper", lambda gpu: gpus.Gpu(gpu, "", "NVIDIA H200", "9.0", 132, 1))
    monkeypatch.setattr("tileseek.commands.roadmap.require", lambda *_: None)
    out = tmp_path / "h200" / "roadmap.json"

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["tileseek", "roadmap", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0)

    assert run("--rows", "K3", "--out", out) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert [row["problem_name"] for row in json.loads(out.read_text())["pairs"]] == ["square"]
    assert run("--rows", "K3", "--out", out) == 0
    assert Instrument.races.count(PROBLEMS["square"]) == 1, "what is measured is not measured again"
    document = json.loads(out.read_text())
    assert [row["problem_name"] for row in document["pairs"]] == ["square", "prefill", "decode_64"]
    assert [row["ratio"] for row in document["pairs"]] == pytest.approx([10 / 9.5] * 3)
    assert document["policy"]["key"] == ABLATION.key
    text = out.with_suffix(".md").read_text()
    assert "| K3 | wgmma groups in flight | 3 | 0 | 0 | 1.053" in text
    assert "| square | mma_in_flight 1 | mma_in_flight 0 | 1.053 [1.053, 1.053] |" in text
    journal = read_journal(out.with_suffix(".jsonl"))
    assert len(journal.measures) == 6 and journal.skipped == 0
    assert run("--plan", "--rows", "K3") == 0
    assert "mma_in_flight=1" in capsys.readouterr().out
    out.write_text("[]")
    assert run("--out", out) == 2
    assert "no document of `tileseek roadmap`" in capsys.readouterr().err
