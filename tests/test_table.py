"""Tables: what they choose from journals, what they refuse, and that equal journals give equal bytes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from journals import ENV, FIFTH, FIRST, FOURTH, SECOND, THIRD, contents, measured
from tileseek.heuristics.journal import Measure
from tileseek.heuristics.table import ALTERNATES, TABLE_SCHEMA, Table, build_table, load_table
from tileseek.space import H100, H200, BadInput, Problem, Schedule

P = Problem(4096, 4096, 4096)
Q = Problem(2048, 8192, 1024)


def best(*measures: Measure, **envs: Any) -> Schedule:
    (entry,) = build_table(contents(measures, **envs), H200).entries
    return entry.schedule


def test_only_verified_results_count() -> None:
    for status in ("compile", "audit", "runtime", "timeout", "correctness", "memory", "implausible"):
        assert best(measured(P, FIRST, 5.0, 2.0, status=status), measured(P, SECOND, 9.0, 1.1)) == SECOND
    assert build_table(contents([measured(P, FIRST, 5.0, 2.0, status="runtime")]), H200).entries == ()


def test_a_final_shoot_out_counts_before_screening() -> None:
    screened = measured(P, FIRST, 5.0, 1.5, ratio_cycles=1.5)
    final = measured(P, SECOND, 9.0, 1.1, policy="final-1")
    assert best(screened, final) == SECOND
    assert best(screened, final, measured(P, FIRST, 9.5, 1.0, policy="final-1")) == SECOND
    assert best(screened, final, measured(P, FIRST, 8.5, 1.2, policy="final-1")) == FIRST


@pytest.mark.parametrize(
    ("policy", "limited", "winner"),
    [("screen-1", True, SECOND), ("screen-1", False, FIRST), ("final-1", True, FIRST), ("final-1", False, FIRST)],
)
def test_screening_goes_by_cycles_where_power_limits(policy: str, limited: bool, winner: Schedule) -> None:
    common: dict[str, Any] = {"policy": policy, "raw": {"power_limited": limited}}
    fast_clock = measured(P, FIRST, 9.0, 1.05, ratio_cycles=0.95, **common)
    few_cycles = measured(P, SECOND, 9.4, 1.00, ratio_cycles=1.02, **common)
    assert best(fast_clock, few_cycles) == winner


@pytest.mark.parametrize(("limited", "winner"), [(False, FIRST), (True, SECOND)])
def test_finalists_compare_by_time_or_where_power_limits_by_cycles(limited: bool, winner: Schedule) -> None:
    common: dict[str, Any] = {"policy": "final-1", "raw": {"power_limited": limited}}
    faster = measured(P, FIRST, 9.0, 1.10, ratio_cycles=1.00, **common)
    frugal = measured(P, SECOND, 9.0, 1.096, ratio_cycles=1.05, **common)
    assert best(faster, frugal) == winner


@pytest.mark.parametrize("policy", ["screen-1", "final-1"])
def test_what_the_rules_refuse_never_wins(policy: str) -> None:
    refused = replace(FIRST, parts_apart=True)
    measures = [
        measured(P, s, us, 100 / us, policy=policy) for s, us in ((refused, 50.0), (SECOND, 90.0), (THIRD, 95.0))
    ]
    (entry,) = build_table(contents(measures), H200).entries
    assert entry.schedule == SECOND
    assert refused not in entry.schedules


def test_without_ratios_the_shortest_time_wins() -> None:
    assert best(measured(P, FIRST, 9.0), measured(P, SECOND, 8.0)) == SECOND


def test_equal_results_go_by_name_in_any_order() -> None:
    pair = [measured(P, FIRST, 9.0, 1.0), measured(P, SECOND, 9.0, 1.0)]
    assert best(*pair) == best(*reversed(pair)) == min(FIRST, SECOND, key=lambda s: s.name)


def test_repeated_measurements_count_by_their_median() -> None:
    lucky = [measured(P, FIRST, 9.0, ratio) for ratio in (0.9, 0.9, 1.5)]
    assert best(*lucky, measured(P, SECOND, 9.0, 1.0)) == SECOND


def test_results_of_older_tools_or_other_devices_are_left_out() -> None:
    old = {"old": {**ENV, "generator": "0"}, "nvrtc": {**ENV, "compiler": "nvrtc 12.9.1"}}
    other = {"h100": {**ENV, "gpu": "NVIDIA H100 80GB HBM3"}, "slice": {**ENV, "gpu": "NVIDIA H200 MIG 1g.18gb"}}
    for env in [*old, *other, "unknown"]:
        assert best(measured(P, FIRST, 5.0, 2.0, env=env), measured(P, SECOND, 9.0, 1.0), **old, **other) == SECOND
    table = build_table(contents([measured(P, FIRST, 5.0, 2.0, env="h100")], **other), H100)
    assert (table.device, table.entries[0].schedule) == (H100, FIRST)


def test_versions_are_compared_as_numbers() -> None:
    new = {**ENV, "generator": "10"}
    table = build_table(
        contents(
            [measured(P, FIRST, 9.0, env="new"), measured(P, SECOND, 5.0, env="mid")],
            new=new,
            mid={**ENV, "generator": "9"},
        ),
        H200,
    )
    assert (table.generator, table.entries[0].schedule) == ("10", FIRST)


def test_nothing_from_the_device_is_bad_input() -> None:
    with pytest.raises(BadInput, match="H100"):
        build_table(contents([measured(P, FIRST, 5.0)]), H100)


def test_an_entry_says_what_was_found() -> None:
    relaunched = replace(FIRST, swizzle=4)
    (entry,) = build_table(
        contents(
            [
                measured(P, FIRST, 10.0, 1.2, policy="final-1", ratio_to_best=1.05, raw={"check": {"norm": 0.002}}),
                measured(P, relaunched, 10.1, 1.19, policy="final-1"),
                *(measured(P, s, 11.0 + i, 1.1 - 0.1 * i) for i, s in enumerate((SECOND, THIRD, FOURTH, FIFTH))),
            ]
        ),
        H200,
    ).entries
    assert (entry.median_us, entry.vs_cublas, entry.vs_cublaslt_best) == (10.0, 1.2, 1.05)
    assert entry.noise == pytest.approx(0.01)
    assert entry.n_measured == 6
    assert entry.numerics == {"class": "deterministic", "rel_error": 0.002}
    assert [a.schedule for a in entry.alternates] == [SECOND, THIRD, FOURTH], "other kernels, best first"
    assert len(entry.alternates) == ALTERNATES


@pytest.mark.parametrize("accumulate", ["fast", "promoted"])
def test_numerics_of_eight_bits_say_how_products_are_summed(accumulate: str) -> None:
    problem = replace(P, dtype="fp8", accumulate=accumulate)
    schedule = replace(FIRST, tile_n=128, tile_k=128, stages=2)
    (entry,) = build_table(contents([measured(problem, schedule, 10.0)]), H200).entries
    assert entry.problem == problem
    assert entry.numerics == {"class": "deterministic", "rel_error": 0.001, "accumulate": accumulate}


def some_contents(seed: int = 0) -> Any:
    rng = random.Random(seed)
    measures = [
        measured(p, s, rng.uniform(5, 50), rng.uniform(0.5, 1.2), policy=policy)
        for p in (P, Q, replace(P, dtype="fp16", out_dtype="fp16"))
        for s in (FIRST, SECOND, THIRD, FOURTH)
        for policy in ("screen-1", "final-1")
    ]
    return contents(measures)


def test_same_journals_same_bytes() -> None:
    journal = some_contents()
    text = build_table(journal, H200).dumps()
    random.Random(1).shuffle(journal.measures)
    assert build_table(journal, H200).dumps() == text
    assert text != build_table(some_contents(2), H200).dumps()


def test_a_table_reads_back(tmp_path: Path) -> None:
    table = build_table(some_contents(), H200, predictor={"trees": [1, 2.5]}, held_out_regret={"geomean": 0.01})
    path = tmp_path / "table.json"
    path.write_text(table.dumps())
    again = load_table(path)
    assert again.dumps() == table.dumps()
    assert (again.entries, again.skipped) == (table.entries, 0)
    assert [entry.problem for entry in again.entries] == sorted(entry.problem for entry in again.entries)


def test_the_file_has_what_the_format_promises() -> None:
    obj = json.loads(build_table(some_contents(), H200).dumps())
    assert obj["schema"] == TABLE_SCHEMA
    assert obj["device"] == {"name": "H200", "aliases": ["NVIDIA H200"], "cc": "9.0", "sm_count": 132}
    assert (obj["generator"], obj["compiler"], obj["policy"]) == ("1", "nvrtc 13.0.88", ["final-1"])
    assert obj.keys() >= {"predictor", "held_out_regret", "coverage"}
    for entry in obj["entries"]:
        assert entry.keys() >= {
            *("problem", "schedule", "median_us", "noise", "vs_cublas", "vs_cublaslt_best"),
            *("alternates", "n_measured", "numerics"),
        }


def test_coverage() -> None:
    table = build_table(some_contents(), H200)
    assert {(row["dtype"], row["problems"], *row["m"], *row["n"], *row["k"]) for row in table.coverage()} == {
        ("bf16", 2, 2048, 4096, 4096, 8192, 1024, 4096),
        ("fp16", 1, 4096, 4096, 4096, 4096, 4096, 4096),
    }
    absent = Problem(1, 8, 8)
    assert table.missing([P, absent, Q]) == [absent]


def written(path: Path, table: Table, **changes: Any) -> Path:
    path.write_text(json.dumps({**json.loads(table.dumps()), **changes}))
    return path


def test_damaged_entries_are_skipped_and_counted(tmp_path: Path) -> None:
    table = build_table(some_contents(), H200)
    entries = json.loads(table.dumps())["entries"]
    broken = [
        {},
        3,
        {**entries[0], "median_us": -1},
        {**entries[0], "schedule": {**entries[0]["schedule"], "tile_q": 1}},
        {**entries[0], "schedule": {**entries[0]["schedule"], "consumers": 0}},
        {**entries[0], "problem": {**entries[0]["problem"], "m": 0}},
        {**entries[0], "alternates": None},
        {**entries[0], "vs_cublas": "fast"},
    ]
    path = written(tmp_path / "t.json", table, entries=[*broken, *entries])
    with pytest.warns(UserWarning, match=f"8 of 11 entries of {path} cannot be read"):
        loaded = load_table(path)
    assert (loaded.entries, loaded.skipped) == (table.entries, len(broken))


def test_a_later_minor_version_may_add_fields(tmp_path: Path) -> None:
    table = build_table(some_contents(), H200)
    entries = [{**entry, "energy": 1} for entry in json.loads(table.dumps())["entries"]]
    assert load_table(written(tmp_path / "t.json", table, entries=entries, more=1)).entries == table.entries


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": TABLE_SCHEMA + 1}, "schema 2: valid is 1"),
        ({"schema": None}, "schema None"),
        ({"device": {"name": "B200"}}, "B200"),
        ({"device": {}}, "has no .name.: valid is one that"),
        ({"entries": None}, "cannot be read"),
    ],
)
def test_what_cannot_be_a_table_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_table(written(tmp_path / "t.json", build_table(some_contents(), H200), **changes))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"null"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(data)
    with pytest.raises(BadInput, match="the table"):
        load_table(path)
    with pytest.raises(BadInput, match="cannot read"):
        load_table(tmp_path / "none.json")
