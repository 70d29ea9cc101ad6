"""The command line: results on stdout, one line and exit code 2 for bad input, runs that stop and go on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from journals import ENV, FIRST, FOURTH, SECOND, contents, measured
from tileseek.cost_model.analytic import estimate_us
from tileseek.cost_model.features import FEATURES
from tileseek.cost_model.predictor import PREDICTOR_VERSION
from tileseek.heuristics.journal import Journal, JournalContents, read_journal
from tileseek.heuristics.packing import pack
from tileseek.heuristics.table import build_table, load_table
from tileseek.measure import gpus
from tileseek.measure.policy import Policy
from tileseek.measure.results import Candidate, Result
from tileseek.space import H200, BadInput, NamedProblem, Problem, Schedule, sample, violations

from tileseek import cli
from tileseek.commands import output

P = Problem(8192, 6144, 4096)
SIZES = ["8192", "6144", "4096"]


class Run:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Cli = Callable[..., Run]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line in this process."""

    def run(*words: object) -> Run:
        monkeypatch.setattr(sys, "argv", ["tileseek", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Run(stop.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    journal = contents([measured(P, FIRST, 600.0, 1.01, ratio_to_best=0.99), measured(P, SECOND, 650.0, 0.95)])
    path.write_text(build_table(journal, H200).dumps())
    return path


# Answers


def test_query(run: Cli, table: Path) -> None:
    done = run("query", *SIZES, "--table", table, "--device", "H200")
    assert done.code == 0
    assert done.out.splitlines()[0] == FIRST.name
    assert "provenance   exact\nexpected     600.00 us" in done.out
    assert done.err == ""


def test_query_prints_one_json_document(run: Cli, table: Path) -> None:
    answer = json.loads(run("query", *SIZES, "--table", table, "--device", "H200", "--json").out)
    assert Schedule.from_json(answer["schedule"]) == FIRST
    assert (answer["provenance"], answer["expected_us"], answer["workspace"]) == ("exact", 600.0, 0)
    assert Problem.from_json(answer["problem"]) == Problem.from_json(answer["origin"]) == P
    assert answer["launch"] == {"grid": 132, "block": 384, "cluster": 2, "smem": 180272}


def test_query_for_another_device_says_where_times_come_from(run: Cli, table: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = run("query", *SIZES, "--table", table, "--device", "H100")
    assert done.err == "tileseek: warning: the table was tuned on H200, asked is H100\n"
    assert "us (measured on H200)\n" in done.out
    answer = json.loads(run("query", *SIZES, "--table", table, "--device", "H100", "--json").out)
    assert (answer["measured_on"], answer["provenance"]) == ("H200", "nearest")


def test_query_of_a_suite_answers_every_row(run: Cli, table: Path, tmp_path: Path) -> None:
    suite = tmp_path / "mine.csv"
    suite.write_text("name,layout,dtype,m,n,k\na,nt,bf16,8192,6144,4096\nb,nn,fp8,64,64,64\nc,nt,bf16,4096,6144,4096\n")
    answers = json.loads(run("query", suite, "--table", table, "--device", "H200", "--json").out)
    assert [(answer["name"], answer.get("provenance")) for answer in answers] == [
        ("a", "exact"),
        ("b", None),
        ("c", "nearest"),
    ]
    assert "fp8" in answers[1]["error"]
    rows = run("query", suite, "--table", table, "--device", "H200").out.splitlines()
    assert [row.split()[0] for row in rows] == ["problem", "a", "b", "c"]


def test_codegen_prints_the_source_of_the_best_schedule(run: Cli, table: Path, tmp_path: Path) -> None:
    done = run("codegen", *SIZES, "--table", table)
    assert (done.code, done.err) == (0, "")
    assert FIRST.kernel.name in done.out.splitlines()[0]
    assert "tileseek_matmul(" in done.out
    out = tmp_path / "new" / "kernel.cu"
    assert run("codegen", *SIZES, "--schedule", FOURTH.name, "--out", out).out == ""
    assert FOURTH.kernel.name in out.read_text().splitlines()[0]


def test_codegen_audit_and_sass(run: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("TILESEEK_CACHE", str(tmp_path / "cache"))
    audit = json.loads(run("codegen", *SIZES, "--schedule", FOURTH.name, "--audit", "--json").out)
    assert audit["accepted"] is True
    assert audit["spill_bytes"] == audit["stack_bytes"] == 0
    lines = run("codegen", *SIZES, "--schedule", FOURTH.name, "--audit").out.splitlines()
    facts = [line.split(maxsplit=1) for line in lines]
    assert ["spill_bytes", "0"] in facts
    assert all(len(fact) == 2 for fact in facts) and "reason" not in dict(facts)
    loops = [words for name, words in facts if name == "loop"]
    assert len(loops) == len(audit["loops"]) > 0
    assert f"hgmma {audit['loops'][0]['hgmma']}, " in loops[0]
    assert f"budget {audit['loops'][0]['budget']}" in loops[0]
    assert audit["instructions_per_wgmma"] == pytest.approx(
        audit["loops"][0]["instructions"] / audit["loops"][0]["hgmma"], abs=0.01
    )
    assert "HGMMA" in run("codegen", *SIZES, "--schedule", FOURTH.name, "--sass").out


def test_a_rejected_kernel_fails_its_audit(run: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("TILESEEK_CACHE", str(tmp_path / "cache"))
    from tileseek.codegen import compiler

    fine = compiler.compile_kernel(P, FOURTH)
    rejected = replace(fine, status="audit", reason="spills 8 bytes")
    monkeypatch.setattr(compiler, "compile_kernel", lambda problem, schedule: rejected)
    done = run("codegen", *SIZES, "--schedule", FOURTH.name, "--audit", "--json")
    assert (done.code, json.loads(done.out)["accepted"]) == (1, False)


@pytest.mark.parametrize("form", ["csv", "inductor", "nvfuser"])
def test_export(run: Cli, table: Path, tmp_path: Path, form: str) -> None:
    done = run("export", form, "--table", table)
    assert (done.code, done.err) == (0, "")
    assert "6144" in done.out
    out = tmp_path / "exported"
    assert run("export", form, "--table", table, "--out", out).out == ""
    assert out.read_text() == done.out


def test_export_packs_journals(run: Cli, recorded: Path, tmp_path: Path) -> None:
    journal, out = recorded / "journal.jsonl", tmp_path / "kept.jsonl.gz"
    done = run("export", "journal", "--journal", journal, "--journal", journal, "--out", out)
    once = read_journal(journal)
    assert (done.code, done.out) == (0, "")
    assert done.err == f"packed {2 * len(once.measures)} measurements\n"
    kept = read_journal(out).measures
    assert [(m.problem, m.schedule) for m in kept] == 2 * [(m.problem, m.schedule) for m in once.measures]
    assert [m.median_us for m in kept] == pytest.approx(2 * [m.median_us for m in once.measures], rel=1e-4)


def test_portfolio_of_a_suite_serves_its_problems_alone(run: Cli, recorded: Path, tmp_path: Path) -> None:
    head, row, *_ = (recorded / "suite.csv").read_text().splitlines()
    (tmp_path / "one.csv").write_text(f"{head}\n{row}\n")
    command = ["portfolio", "--journal", recorded / "journal.jsonl", "--json"]
    everything, one = json.loads(run(*command).out), json.loads(run(*command, "--suite", tmp_path / "one.csv").out)
    (tmp_path / "none.csv").write_text("name,layout,dtype,m,n,k\nother,nt,bf16,72,80,88\n")
    assert "none of the 1 problems of" in run(*command, "--suite", tmp_path / "none.csv").err
    assert len(everything["problems"]) == len(PROBLEMS) > 1 == len(one["problems"]) == len(one["kernels"])


def test_export_counts_what_it_leaves_out(run: Cli, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    journal = contents([measured(P, FIRST, 600.0), measured(replace(P, overlap="weights"), FIRST, 600.0)])
    path.write_text(build_table(journal, H200).dumps())
    message = "exported 1 of 2 entries; left out: 1 because the form has no overlap\n"
    assert [run("export", form, "--table", path).err for form in ("csv", "nvfuser")] == ["", message]


@pytest.mark.parametrize("name", ["launch_ns", "l2_bytes_per_ns"])
@pytest.mark.parametrize("value", [0, "fast"])
def test_a_damaged_table_is_used_as_far_as_it_goes(run: Cli, table: Path, name: str, value: object) -> None:
    document = json.loads(table.read_text())
    document["entries"].append({"problem": "damaged"})
    document["predictor"] = {
        "version": PREDICTOR_VERSION,
        "features": FEATURES,
        "bias": 0.0,
        "members": [{"first": 0.0, "trees": [[[-1, 0.0, 0, 0]]]}],
        "constants": {name: value},
    }
    table.write_text(json.dumps(document))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = run("query", 8192, 6144, 2048, "--table", table, "--device", "H200")
        exported = run("export", "csv", "--table", table)
    assert (done.code, exported.code) == (0, 0)
    assert "provenance   nearest" in done.out
    lost, unused = done.err.splitlines()
    assert exported.err.splitlines() == [lost] == [f"tileseek: warning: 1 of 2 entries of {table} cannot be read"]
    assert f"the table's predictor is not used: {name} is {value!r}: valid is a number" in unused


def test_a_light_installation_refuses_before_it_reads(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tileseek.commands.inputs.find_spec", lambda module: None)
    done = run("export", "table", "--journal", "none.jsonl")
    assert (done.code, done.out) == (2, "")
    assert "is not installed: valid is an installation of tileseek[search]" in done.err


def test_matmul_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import tileseek

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BadInput, match=r"torch is not installed: .* tileseek\[tune\]"):
        tileseek.matmul(None, None)  # type: ignore[arg-type]


def test_brackets_are_no_markup(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise BadInput("valid is an installation of tileseek[search]")

    monkeypatch.setattr("tileseek.commands.doctor.load_table", refuse)
    assert "tileseek[search]" in run("doctor").out
    with output.notes.capture() as said:
        output.notes.print("tileseek[search] :boom:")
    assert said.get() == "tileseek[search] :boom:\n"


def test_doctor(run: Cli) -> None:
    facts = json.loads(run("doctor", "--json").out)
    assert set(facts["abilities"]) == {"query", "compile and search", "measure"}
    assert run("doctor").code == 0


def test_version_and_help(run: Cli) -> None:
    assert run("--version").out.startswith("tileseek ")
    assert all(
        word in run("--help").out
        for word in (
            "tune",
            "query",
            "bench",
            "bench search",
            "codegen",
            "export",
            "report",
            "doctor",
            "noise",
            "recheck",
            "speed",
        )
    )


class Instrument:
    """A measurer whose results are made up; at the problem m = 13 somebody presses Ctrl-C, m = 64 is wrong."""

    device = H200
    env: ClassVar = {"gpu": "NVIDIA H200"}

    def __init__(self, gpu: int) -> None:
        pass

    def __enter__(self) -> Instrument:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(self, problem: Problem, candidates: list[Candidate], policy: Policy) -> list[Result]:
        if problem.m == 13:
            raise KeyboardInterrupt
        schedule = candidates[0].schedule
        if problem.m == 64:
            return [Result(schedule, "correctness", "7 wrong elements")]
        ratios = {"ratio_to_ref": 1.1, "ratio_to_best": 0.9, "ratio_cycles": 1.2, "ratio_cycles_best": 0.8}
        ci95 = {name: (value - 0.01, value + 0.01) for name, value in ratios.items()}
        times: dict[str, Any] = {"median_us": 10.0, "ref_us": 11.0, "best_us": 9.0}
        if policy.energy_ms:
            times |= {"energy_mj": 42.5, "ratio_energy": 1.3}
        results = []
        for candidate in candidates:
            own = times | {"times_us": (8.0 if candidate.plain else 10.0,), "rounds": (0,), "clocks_mhz": (1500.0,)}
            results.append(
                Result(candidate.schedule, "correct", best="cublaslt1", clock_mhz=1500.0, ci95=ci95, **own, **ratios)
            )
        return results


@pytest.fixture
def bench(run: Cli, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Bench a suite of problems with these m."""
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setattr("tileseek.measure.supervisor.Measurer", Instrument)
    monkeypatch.setattr("tileseek.commands.bench.hopper", lambda gpu: gpus.Gpu(gpu, "", "NVIDIA H200", "9.0", 132, 1))
    monkeypatch.setattr("tileseek.commands.bench.require", lambda *_: None)

    def bench(ms: list[int], *words: object, epilogue: str = "none") -> Run:
        rows = [f"p{m},nt,bf16,{m},6144,4096,{epilogue}\n" for m in ms]
        (tmp_path / "suite.csv").write_text("name,layout,dtype,m,n,k,epilogue\n" + "".join(rows))
        return run("bench", tmp_path / "suite.csv", "--table", table, *words)

    return bench


def test_bench_prints_rows_and_means(bench: Cli, tmp_path: Path) -> None:
    out = tmp_path / "bench" / "suite.json"
    done = bench([8192, 64, 1024], "--json", "--out", out)
    assert done.code == 0
    document = json.loads(done.out)
    assert out.read_text() == done.out
    assert set(document) == {"env", "policy", "command", "date", "rows", "geomean"}
    large, wrong, middle = document["rows"]
    assert (large["name"], large["ours_us"], large["ratio_cublaslt_best"]) == ("p8192", 10.0, 0.9)
    assert large["ci95"]["ratio_cublas"] == pytest.approx([1.09, 1.11])
    assert (wrong["correct"], wrong["status"], wrong["ours_us"]) == (False, "correctness", None)
    assert set(wrong) == set(large) == set(middle)
    assert document["geomean"] == pytest.approx({"ratio_cublas": 1.1, "ratio_cublaslt_best": 0.9})
    assert "2 of 3 problems are not in the table" in done.err
    lines = bench([8192, 64], "--least", 100).out.splitlines()
    assert [line.split()[0] for line in lines] == ["problem", "p8192", "geometric"]


def test_bench_measures_energy_when_asked(bench: Cli) -> None:
    (without,) = json.loads(bench([8192], "--json").out)["rows"]
    document = json.loads(bench([8192], "--energy", "--json").out)
    (row,) = document["rows"]
    assert (without["energy_mj"], without["ratio_energy_cublas"]) == (None, None)
    assert (row["energy_mj"], row["ratio_energy_cublas"]) == (42.5, 1.3)
    assert document["policy"]["energy_ms"] > 0
    assert " 42.5 " in bench([8192], "--energy").out


def test_bench_tells_what_an_epilogue_costs(bench: Cli) -> None:
    rows = {
        epilogue: json.loads(bench([8192], "--json", epilogue=epilogue).out)["rows"][0]
        for epilogue in ("none", "bias+gelu", "silu+gated")
    }
    assert rows["none"]["over_plain"] is None
    assert rows["silu+gated"]["over_plain"] is None
    cost = rows["bias+gelu"]["over_plain"]
    assert (cost["time"], cost["cycles"]) == (1.25, 1.25)
    assert " 1.250 [1.250, 1.250] " in bench([8192], epilogue="bias+gelu").out


def test_bench_keeps_its_rows_when_it_is_interrupted(bench: Cli, tmp_path: Path) -> None:
    done = bench([8192, 13, 1024], "--out", tmp_path / "b.json")
    assert done.code == 130
    assert [row["name"] for row in json.loads((tmp_path / "b.json").read_text())["rows"]] == ["p8192"]
    assert "stopped after 1 of 3 problems" in done.err


def test_speed(run: Cli, table: Path) -> None:
    facts = json.loads(run("speed", "--table", table, "--kernels", 2, "--workers", 1, "--json").out)
    assert (facts["table_entries"], facts["kernels"], facts["compilers"]) == (1, 2, 1)
    assert 0 < facts["seconds_per_kernel_median"] <= facts["seconds_per_kernel_max"]
    assert facts["next_query_us"] > 0
    assert 0 < facts["quick_query_us"] <= facts["quick_query_us_p99"]
    assert 0 < facts["unknown_query_us"] <= facts["unknown_query_us_p99"]


# Refusals


def wrong_csv(folder: Path) -> str:
    (folder / "wrong.csv").write_text("name,m,n,k\na,1,8,8\n")
    return str(folder / "wrong.csv")


def endless_cell(folder: Path) -> str:
    (folder / "endless.csv").write_text("name,layout,dtype,m,n,k\n" + "a" * 200_000 + ",nt,bf16,8,8,8\n")
    return str(folder / "endless.csv")


def nested_table(folder: Path) -> str:
    (folder / "nested.json").write_text("[" * 100_000)
    return str(folder / "nested.json")


def newer_table(folder: Path) -> str:
    (folder / "newer.json").write_text('{"schema": 99}')
    return str(folder / "newer.json")


def broken_table(folder: Path) -> str:
    (folder / "broken.json").write_text("{")
    return str(folder / "broken.json")


def a_file(folder: Path) -> str:
    (folder / "file").write_text("")
    return str(folder / "file")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing command"),
        (["frobnicate"], "frobnicate"),
        (["query"], "Missing argument"),
        (["query", "8"], "problem suite is '8': valid are decode, decode_overlap, epilogue, gemv, headline,"),
        (["query", "8", "8"], "problems are '8 8'"),
        (["query", "0", "8", "8"], "m is 0: valid is an integer from 1"),
        (["query", "-5", "8", "8"], "m is -5: valid is an integer from 1"),
        (["query", "8", "8.5", "8"], "n is '8.5': valid is a positive integer"),
        (["query", "8", "8", "x"], "k is 'x': valid is a positive integer"),
        (["query", "8", "8", "99999999999"], "k is 99999999999"),
        (["query", "8", "8", "8", "--dtype", "int8"], "dtype is 'int8': valid are bf16, fp16, fp8"),
        (["query", "8", "8", "8", "--layout", "xx"], "layout is 'xx': valid are nt, nn, tn, tt"),
        (["query", "8", "8", "8", "--epilogue", "magic"], "epilogue is 'magic'"),
        (["query", "8", "8", "8", "--frob"], "option --frob is unknown"),
        (["query", "8", "8", "8", "--device", "B200"], "device is 'B200': valid are H200"),
        (["query", "8", "8", "16", "--dtype", "fp8", "--layout", "nn"], "layout nn of fp8: valid is nt"),
        (["query", "8", "8", "8", "--accumulate", "promoted"], "accumulate promoted of bf16: valid is fast"),
        (
            ["codegen", "8", "8", "8", "--out-dtype", "fp8"],
            "out_dtype fp8 of bf16 operands: valid are bf16, fp16, fp32",
        ),
        (["query", "headline", "--dtype", "fp16"], "--dtype goes with sizes"),
        (["recheck", "headline", "--out-dtype", "fp32"], "--out-dtype goes with sizes"),
        (["noise", "8", "8", "8", "--accumulate", "slow"], "accumulate is 'slow'"),
        (["query", "none.csv"], "cannot read none.csv: No such file or directory"),
        (["query", wrong_csv], "the header is 'name,m,n,k': valid is name,layout,dtype,m,n,k"),
        (["query", "8", "8", "8", "--table", "none.json"], "cannot read none.json: No such file or directory"),
        (["query", "8", "8", "8", "--table", newer_table], "has schema 99: valid is 1"),
        (["query", "8", "8", "8", "--table", broken_table], "is not JSON"),
        (["query", "8", "8", "8", "--table", nested_table], "is not JSON"),
        (["query", endless_cell], "field larger than field limit"),
        (["codegen", *SIZES, "--schedule", "fast"], "schedule is 'fast': valid is a name such as coop2_"),
        (["codegen", *SIZES, "--schedule", FIRST.name.replace("_s3_", "_s9_")], "bytes of shared memory: valid is"),
        (["codegen", *SIZES, "--sass", "--audit"], "--sass and --audit are both given"),
        (["codegen", *SIZES, "--json"], "--json is given without --audit"),
        (["codegen", "headline"], "25 problems are named"),
        (["codegen", *SIZES, "--schedule", FIRST.name, "--out", "/proc/none/x"], "cannot write /proc/none/x"),
        (["export", "yaml"], "form is 'yaml': valid are csv, inductor, nvfuser, table, t4"),
        (["export", "t4", "--journal", "none.jsonl"], "cannot read none.jsonl: No such file or directory"),
        (["export", "csv", "--journal", "j"], "--journal means nothing to export csv: valid are --table, --out"),
        (["export", "inductor", "--device", "H200"], "--device means nothing to export inductor"),
        (["export", "nvfuser", "--objective", "time"], "--objective means nothing to export nvfuser"),
        (["export", "table", "--table", "t"], "--table means nothing to export table: valid are --journal"),
        (["export", "t4", "--table", "t"], "--table means nothing to export t4: valid are --journal, --device, --out"),
        (["export", "t4", "--objective", "edp"], "--objective means nothing to export t4"),
        (["export", "t4", "--journal", "j", "--device", "H200"], "valid is --device or --journal, not both"),
        (["export", "journal"], "export journal without --out"),
        (["export", "journal", "--out", "kept.jsonl"], "--out is kept.jsonl: valid is a name that ends in .gz"),
        (["portfolio", "--loss", "-1"], "the loss is -1: valid is 0 or more"),
        (["portfolio", "--suite", "nosuch"], "nosuch"),
        (["portfolio", "--journal", "none.jsonl"], "cannot read none.jsonl: No such file or directory"),
        (["report", "none.jsonl"], "cannot read none.jsonl: No such file or directory"),
        (["report", "."], "no journal in the folder ."),
        (["bench", "search", "--folds", "0"], "--folds is 0: valid is 2 or more"),
        (["bench", "search", "--arm", "luck"], "arm is 'luck': valid are random, tpe"),
        (["tune", "headline", "--sampler", "luck"], "sampler is 'luck': valid are tpe"),
        (["tune", "headline", "--storage", "here"], "storage is 'here', which cannot be used"),
        (["bench", *SIZES, "--policy", "lucky"], "policy is 'lucky': valid are screen, final, burst"),
        (["tune", *SIZES, "--measurements", "0"], "0 measurements: valid is a positive number"),
        (["tune", *SIZES, "--measurements", "many"], "'many' is not a whole number"),
        (["tune", *SIZES, "--seconds", "1h"], "'1h' is not a number"),
        (["bench", *SIZES, "--gpu", "one"], "'one' is not a whole number"),
        (["bench", *SIZES, "--least", "9000"], "--least 9000 leaves none of 1 problems"),
        (["speed", "--kernels", "-1"], "--kernels is -1"),
        (["speed", "--kernels", "1", "--workers", "0"], "0 compile workers"),
        (["tune", *SIZES, "--objective", "speed"], "objective is 'speed': valid are time, energy, edp"),
        (["export", "table", "--objective", "watts"], "objective is 'watts': valid are time, energy, edp"),
        (["noise", *SIZES, "--policy", "quick"], "policy is 'quick': valid are screen"),
        (["tune", *SIZES, "--replay", "none.jsonl"], "cannot read none.jsonl: No such file or directory"),
        (["tune", *SIZES, "--replay", "none.jsonl", "--gpu", "0"], "both given"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*(word(tmp_path) if callable(word) else word for word in words))
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert done.err.startswith("tileseek: ")
    assert message in done.err


def no_gpus() -> tuple[gpus.Gpu, ...]:
    return ()


def an_ampere() -> tuple[gpus.Gpu, ...]:
    return (gpus.Gpu(0, "GPU-0", "NVIDIA A100", "8.0", 108, 80 << 30),)


@pytest.mark.parametrize("command", [["bench", *SIZES], ["tune", *SIZES, "--gpu", "0"]])
def test_no_gpu_or_another_one(run: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for found, message in (
        (no_gpus, "GPU 0 is not there: 0 visible, valid is a Hopper GPU"),
        (an_ampere, "GPU 0 is 'NVIDIA A100' of compute capability 8.0: valid is 9.0 (Hopper)"),
    ):
        monkeypatch.setattr(gpus, "gpus", found)
        done = run(*command)
        assert (done.code, done.out) == (2, "")
        assert done.err == f"tileseek: {message}\n" or message in done.err


def test_a_bug_stays_visible(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only bad input becomes a line; anything else keeps its traceback."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tileseek.commands.query.load_table", lambda *_, **__: broken())
    monkeypatch.setattr(sys, "argv", ["tileseek", "query", "8", "8", "8"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m tileseek codegen 64 64 64 --schedule {FOURTH.name} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd="/", check=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("redirection", "code", "words"),
    [
        (">&-", 0, ""),
        (">/dev/null 2>&-", 0, ""),
        ("> /dev/full", 2, "tileseek: cannot write the output: No space left on device\n"),
    ],
)
def test_output_that_goes_nowhere(redirection: str, code: int, words: str) -> None:
    command = f"{sys.executable} -m tileseek codegen 64 64 64 --schedule {FOURTH.name} {redirection}"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, cwd="/", check=False)
    assert (done.returncode, done.stderr) == (code, words)


def test_long_work_without_a_terminal_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("replaying", 3, lines=True) as advance:
        for now, done in (("fold 1", 0), ("fold 1", 1), ("fold 2", 2)):
            advance(now, done)
    assert capsys.readouterr().err == "replaying: fold 1, 0 done before\nreplaying: fold 2, 2 done before\n"


# Runs


PROBLEMS = [Problem(4096, 4096, 4096), Problem(512, 4096, 2048)]
SUITE = "name,layout,dtype,m,n,k\nlarge,nt,bf16,4096,4096,4096\nsmall,nt,bf16,512,4096,2048\nabsent,nt,bf16,8,8,8\n"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed journal of 60 schedules for each of two problems, timed by the analytic model."""
    import random

    folder = tmp_path_factory.mktemp("recorded")
    rng = random.Random(3)
    with Journal(folder / "journal.jsonl") as journal:
        journal.append({"kind": "env", "env": "e1", **ENV})
        for problem in PROBLEMS:
            for schedule in {sample(problem, H200, rng) for _ in range(60)}:
                time = estimate_us(problem, schedule, H200)
                measure = measured(problem, schedule, time, 200 / time)
                line = {name: getattr(measure, name) for name in ("status", "times_us", "median_us", "ratio_to_ref")}
                head = {"kind": "measure", "problem": problem.to_json(), "schedule": schedule.to_json()}
                journal.append({**head, **line, "env": "e1", "policy": "screen-1"})
    pack(read_journal(folder / "journal.jsonl"), folder / "journal.jsonl.gz")
    (folder / "suite.csv").write_text(SUITE)
    return folder


def test_tune_replays_stops_at_its_budget_and_goes_on(run: Cli, recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["tune", recorded / "suite.csv", "--replay", recorded / "journal.jsonl.gz", "--out", out]
    done = run(*command, "--measurements", 30)
    assert done.code == 0
    assert "2 of 2 problems have a schedule: 30 new measurements, 0 known before" in done.out
    assert "left out 1 of 3 problems: absent (absent: it is not in the journal)" in done.err
    first = read_journal(out / "journal.jsonl")
    screened = [(m.problem, m.schedule) for m in first.measures]
    assert len(set(screened)) == 30
    table = load_table(out / "table.json")
    assert {entry.problem for entry in table.entries} == set(PROBLEMS)
    for entry in table.entries:
        assert violations(entry.problem, entry.schedule, H200) == []
    assert "| large |" in (out / "report.md").read_text()

    with Journal(out / "journal.jsonl", alone=True):
        second = run(*command)
    assert (second.code, second.err.count("tileseek: ")) == (2, 1)
    assert second.err.endswith(f"{out} is in use by another process: valid is another folder\n")

    with (out / "journal.jsonl").open("a") as lines:
        lines.write("{broken\n")
    resumed = run(*command, "--measurements", 60).err
    assert "going on from" in resumed
    assert f"{out / 'journal.jsonl'}: 1 lines skipped as unreadable" in resumed
    again = read_journal(out / "journal.jsonl")
    assert again.measures[: len(first.measures)] == first.measures, "nothing measured is lost"
    assert len({(m.problem, m.schedule) for m in again.measures}) == 60, "or measured again"
    whole = {path: path.read_bytes() for path in (out / "journal.jsonl", out / "table.json")}
    done = run(*command, "--measurements", 60)
    assert f"{out / 'report.md'}" in done.out
    assert "0 new measurements, 60 known before" in done.out
    assert {path: path.read_bytes() for path in whole} == whole, "what a replayed final finds is not new"
    report = run("report", out)
    assert (report.code, report.out.count("| sq4096 |")) == (0, 1)
    assert "Not in the table" not in report.out, "no suite was asked for"


def test_the_default_budget_is_for_the_problems_that_can_be_tuned(
    run: Cli, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tileseek.commands.tune.MEASUREMENTS", 15)
    command = ["tune", recorded / "suite.csv", "--replay", recorded / "journal.jsonl.gz", "--out", tmp_path / "run"]
    assert "30 new measurements" in run(*command).out, "for 2 of 3 problems"


def test_tune_without_a_gpu_says_so_in_one_line(
    run: Cli, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tileseek.commands.tune.gpus", an_ampere)
    monkeypatch.setattr("tileseek.commands.tune.journal_path", lambda device: recorded / "journal.jsonl.gz")
    done = run("tune", "4096", "4096", "4096", "--measurements", 20, "--out", tmp_path / "run")
    assert done.code == 0
    assert done.err.splitlines()[0] == "no Hopper GPU here (NVIDIA A100): replaying what was measured on an H200"


def test_a_report_that_is_refused_counts_what_it_could_not_read(run: Cli, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"\x00\xff\n" * 3)
    done = run("report", journal)
    assert done.code == 2
    assert done.err.splitlines()[0] == f"{journal}: 3 lines skipped as unreadable"


@pytest.fixture
def live_tune(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the command, which finds a GPU whose measuring process does nothing."""
    pytest.importorskip("cuda.bindings.nvrtc")
    pytest.importorskip("optuna")
    from tileseek.commands import tune

    card = gpus.Gpu(0, "", "NVIDIA H200", "9.0", 132, 1)
    monkeypatch.setattr(tune, "hopper", lambda gpu: card)
    monkeypatch.setattr(tune, "require", lambda *_: None)
    monkeypatch.setattr("tileseek.measure.supervisor.Measurer", lambda gpu: contextlib.nullcontext())
    return tune


def test_a_live_search_starts_from_what_is_bundled(
    live_tune: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = contents([measured(P, FIRST, 9.0, 1.0)])
    monkeypatch.setattr(live_tune, "read_journal", lambda path: known)
    with live_tune.live([NamedProblem("p", P)], 0, tmp_path / "journal.jsonl") as world:
        assert [(m.schedule, m.env) for m in world.history.measures] == [(FIRST, "")], "not as if measured here"
        assert world.incumbents
        assert world.predictor is not None, "the bundled table carries one for the features of this version"


def test_a_bundled_journal_that_cannot_be_read_is_told_and_the_folder_free_again(
    live_tune: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise BadInput("cannot read the journal")

    monkeypatch.setattr(live_tune, "read_journal", refuse)
    journal = tmp_path / "journal.jsonl"
    with pytest.raises(BadInput, match="cannot read the journal"), live_tune.live([NamedProblem("p", P)], 0, journal):
        pytest.fail("there is nothing to start from")
    Journal(journal, alone=True).close()


@pytest.mark.parametrize("end", [BadInput("the GPU is in use"), KeyboardInterrupt()])
def test_a_start_that_ends_early_does_not_wait_for_the_bundled_journal(
    live_tune: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    reading, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def read(path: Path) -> JournalContents:
        reading.set()
        may_end.wait(20)
        ended.set()
        return contents([])

    def measurer(gpu: int) -> None:
        reading.wait(20)
        raise end

    monkeypatch.setattr(live_tune, "read_journal", read)
    monkeypatch.setattr("tileseek.measure.supervisor.Measurer", measurer)
    journal = tmp_path / "journal.jsonl"
    with pytest.raises(type(end)), live_tune.live([NamedProblem("p", P)], 0, journal):
        pytest.fail("nothing measures")
    assert reading.is_set() and not ended.is_set()
    may_end.set()
    Journal(journal, alone=True).close()


def test_tune_of_problems_that_nobody_measured(run: Cli, recorded: Path, tmp_path: Path) -> None:
    done = run("tune", "8", "8", "8", "--replay", recorded / "journal.jsonl.gz", "--out", tmp_path / "run")
    assert done.code == 2
    assert "it is not in the journal" in done.err
    assert not (tmp_path / "run").exists()


def test_tune_into_a_folder_that_cannot_be_written(run: Cli, recorded: Path, tmp_path: Path) -> None:
    done = run("tune", "4096", "4096", "4096", "--replay", recorded / "journal.jsonl.gz", "--out", a_file(tmp_path))
    assert done.code == 2
    assert "cannot write" in done.err


def test_tune_on_a_full_disk_ends_in_one_line_and_goes_on_later(
    run: Cli, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    replay = ["--replay", recorded / "journal.jsonl.gz", "--measurements", 40]
    command = ["tune", "4096", "4096", "4096", *replay, "--out", out]
    append, lines = Journal.append, []

    def fills_up(journal: Journal, line: Any) -> None:
        if len(lines) == 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(journal.path))
        lines.append(line)
        append(journal, line)

    with monkeypatch.context() as full:
        full.setattr(Journal, "append", fills_up)
        done = run(*command)
    assert done.code == 2
    assert done.err.splitlines()[-1] == f"tileseek: cannot write {out / 'journal.jsonl'}: No space left on device"
    assert len(read_journal(out / "journal.jsonl").measures) == 19, "and the environment"
    assert "19 known before" in run(*command).out


def test_a_journal_of_times_says_nothing_of_energy(run: Cli, recorded: Path, tmp_path: Path) -> None:
    replay = ["--replay", recorded / "journal.jsonl.gz", "--out", tmp_path / "run"]
    done = run("tune", "4096", "4096", "4096", *replay, "--objective", "energy")
    assert done.code == 2
    assert "holds no measurement made for the objective energy" in done.err


def test_tune_fails_when_nothing_works(run: Cli, recorded: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text((recorded / "journal.jsonl").read_text().replace('"status":"correct"', '"status":"runtime"'))
    done = run("tune", "4096", "4096", "4096", "--replay", broken, "--out", tmp_path / "run")
    assert done.code == 1
    assert "no correct schedule (" in done.err and "runtime" in done.err
    assert "`tileseek doctor` looks at the machine" in done.err


def test_tune_skips_damaged_lines_and_counts_them(run: Cli, recorded: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes((recorded / "journal.jsonl").read_bytes() + b"{broken\n" + b'{"v": 99}\n')
    out = tmp_path / "run"
    done = run("tune", "4096", "4096", "4096", "--replay", damaged, "--out", out, "--measurements", 20)
    assert done.code == 0
    assert f"{damaged}: 2 lines skipped as unreadable" in done.err


def test_ctrl_c_keeps_what_there_is_and_says_how_to_go_on(recorded: Path, tmp_path: Path) -> None:
    """A signal in the middle of a search, as a terminal sends it."""
    out = tmp_path / "run"
    words = ["tune", str(recorded / "suite.csv"), "--replay", str(recorded / "journal.jsonl.gz"), "--out", str(out)]
    stuck = """
import sys, time
from tileseek import cli
from tileseek.commands import output
from tileseek.search import runner
measure = runner.ReplayRunner.measure
pauses = iter([0.0] * 6)
def stuck(*arguments):
    time.sleep(next(pauses, 30.0))
    return measure(*arguments)
runner.ReplayRunner.measure = stuck
cli.main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", stuck, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )
    journal = out / "journal.jsonl"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 20:
        assert process.poll() is None, process.communicate()
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "to go on where it stopped: tileseek tune" in stderr
    assert "Traceback" not in stderr
    assert "problems have a schedule" in stdout
    assert load_table(out / "table.json").entries
    assert read_journal(journal).skipped == 0


def test_ctrl_c_while_modules_are_imported(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "tileseek"], capture_output=True, text=True, cwd="/", env=path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_unknown_hopper_gpus_are_a_class_of_their_own() -> None:
    assert gpus.Gpu(0, "GPU-0", "NVIDIA H200", "9.0", 132, 1).device == H200
    for name, sm_count in (("NVIDIA H200 NVL", 132), ("NVIDIA H200", 16)):
        device = gpus.Gpu(0, "GPU-0", name, "9.0", sm_count, 1).device
        assert device != H200
        assert device.sm_count == sm_count
    with pytest.raises(BadInput, match="valid is a Hopper"):
        gpus.hopper(99)
