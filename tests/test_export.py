"""Exports and reports: the forms that others read."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields, replace

import pytest
from journals import FIRST, FOURTH, SECOND, THIRD, contents, measured
from tileseek.heuristics.export import left_out, to_csv, to_inductor, to_nvfuser, to_t4
from tileseek.heuristics.report import geomean, report, some_of
from tileseek.heuristics.table import Table, build_table
from tileseek.space import H200, NamedProblem, Problem, Schedule, nearest

P = Problem(4096, 6144, 2048)
GEOMETRIES = [
    P,
    replace(P, batch=4),
    *(replace(P, batch=4, broadcast=shared) for shared in ("a", "ab")),
    *(replace(P, **{f"{matrix}_align": 8}) for matrix in ("a", "b", "d")),
]
NARROW = replace(FIRST, tile_n=176)
JOURNAL = contents(
    [
        measured(P, NARROW, 100.0, 1.25, ratio_to_best=1.05),
        measured(P, FIRST, 110.0, 1.2),
        measured(P, SECOND, 120.0, 1.1),
        measured(Problem(16, 8, 64), replace(FOURTH, swap_ab=True), 3.0, 0.5, ratio_to_best=0.4),
    ]
)
JOURNAL.compiles.append(measured(P, THIRD, 0.0, status="audit", median_us=None, times_us=()))


@pytest.fixture
def table() -> Table:
    return build_table(JOURNAL, H200)


def test_csv(table: Table) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert [row["schedule"] for row in rows] == [entry.schedule.name for entry in table.entries]
    assert [row["m"] for row in rows] == ["16", "4096"]
    assert float(rows[1]["vs_cublas"]) == 1.25
    assert {field.name for field in fields(Problem)} < rows[0].keys()


def like_first(problem: Problem) -> Schedule:
    """A schedule like `FIRST` that the problem can run."""
    return nearest(FIRST.to_json(), problem, H200)


def test_csv_tells_problems_apart_that_differ_in_one_field() -> None:
    problems = [*GEOMETRIES, replace(P, deterministic=True)]
    measures = [measured(p, like_first(p), 9.0) for p in problems]
    rows = csv.reader(io.StringIO(to_csv(build_table(contents(measures), H200))))
    columns = len(fields(Problem))
    assert len({tuple(row[:columns]) for row in rows}) == len(problems) + 1


def test_inductor(table: Table) -> None:
    found = json.loads(to_inductor(table))
    key = "NVIDIA H200+((torch.bfloat16, [4096, 2048], [2048, 1]), (torch.bfloat16, [2048, 6144], [1, 2048]))+mm"
    assert list(found) == [key], "a swapped schedule is none of Triton's"
    assert [(c["BLOCK_M"], c["BLOCK_N"], c["BLOCK_K"], c["num_stages"], c["num_warps"]) for c in found[key]] == [
        (128, 256, 64, 3, 8),
        (64, 256, 64, 4, 4),
    ]
    assert found[key][0]["GROUP_M"] == 8
    assert all(c["template_id"] == "triton::mm_persistent_tma" for c in found[key])


def test_nvfuser(table: Table) -> None:
    (row,) = json.loads(to_nvfuser(table))
    assert row["problem"] == {"m": 4096, "n": 6144, "k": 2048, "batch_size": 1, "layout": 0, "precision": "TST"}
    config = row["config"]
    assert (config["cta_tile"], config["warp_tile"]) == ([128, 176, 64], [64, 176, 64])
    assert (config["instruction_tile"], config["cluster_dims"]) == ([64, 176, 16], [2, 1, 1])
    assert (config["load_stages"], config["grid_swizzle_factor"], config["cta_order"]) == (3, 8, 0)


def test_eight_bits_and_other_outputs_are_left_out_where_the_form_has_none() -> None:
    wide, eight = replace(P, out_dtype="fp32"), replace(P, dtype="fp8", out_dtype="bf16")
    chunks = replace(FIRST, epilogue_n=32)
    row = replace(FIRST, tile_n=128, tile_k=128, stages=2)
    table = build_table(contents([measured(wide, chunks, 5.0, 1.0), measured(eight, row, 5.0, 1.0)]), H200)
    assert [(row["out_dtype"], row["accumulate"]) for row in csv.DictReader(io.StringIO(to_csv(table)))] == [
        ("fp32", "fast"),
        ("bf16", "fast"),
    ]
    assert sum(left_out("inductor", table).values()) == 2
    assert list(left_out("nvfuser", table)) == ["the form says nothing of how 8-bit products are summed"]


def test_what_a_form_cannot_say_is_left_out_and_counted() -> None:
    """A problem with an overlap or an epilogue would come out as a second plain one."""
    swapped = measured(Problem(16, 8, 64), replace(FOURTH, swap_ab=True), 3.0)
    others = [measured(replace(P, overlap="weights"), FIRST, 9.0), measured(replace(P, epilogue="bias"), FIRST, 9.0)]
    table = build_table(contents([measured(P, FIRST, 110.0), swapped, *others]), H200)
    assert len(json.loads(to_inductor(table))) == len(json.loads(to_nvfuser(table))) == 1
    for form, words in (("inductor", "odd tiles, splits K or swaps"), ("nvfuser", "every schedule swaps operands")):
        reasons = left_out(form, table)
        assert (reasons["the form has no overlap"], reasons["the form has no epilogue"], reasons.total()) == (1, 1, 3)
        assert any(words in reason for reason in reasons)
    assert not left_out("csv", table)


def test_batches_and_padded_rows_do_not_pass_for_plain_problems() -> None:
    table = build_table(contents([measured(p, like_first(p), 9.0 + i) for i, p in enumerate(GEOMETRIES)]), H200)
    assert len(json.loads(to_inductor(table))) == 1
    assert left_out("inductor", table) == {
        "the form has no batches": 3,
        "the form has no alignments of rows": 3,
    }
    rows = [row["problem"] for row in json.loads(to_nvfuser(table))]
    assert [row["batch_size"] for row in rows] == [1, 4]
    assert left_out("nvfuser", table).total() == len(GEOMETRIES) - 2


def test_t4() -> None:
    document = json.loads(to_t4(JOURNAL))
    assert document["schema_version"] == "1.0.0"
    assert len(document["results"]) == len(JOURNAL.measures) + 1
    failed, *measures = document["results"]
    assert (failed["invalidity"], failed["correctness"], failed["times"]["runtimes"]) == ("compile", 0, [])
    assert measures[0]["configuration"]["tile_n"] == 176
    assert (measures[0]["invalidity"], measures[0]["correctness"]) == ("correct", 1)
    assert measures[0]["measurements"][0] == {"name": "time", "value": 0.1, "unit": "ms"}


def test_t4_has_energy_where_it_was_measured() -> None:
    frugal = measured(P, FOURTH, 3.0, 0.8, policy="edp:screen-1", raw={"energy_mj": 40.0})
    (result,) = json.loads(to_t4(contents([frugal])))["results"]
    assert {"name": "energy", "value": 40.0, "unit": "mJ"} in result["measurements"]
    assert result["objectives"] == ["energy", "time"]


def test_report() -> None:
    final = {"policy": "final-1"}
    measures = [replace(m, **final) if m.problem == P else m for m in JOURNAL.measures]
    measures.append(measured(Problem(64, 64, 64), FOURTH, 3.0, 0.8, ratio_to_best=0.7, **final))
    table = build_table(contents(measures), H200)
    JOURNAL.skipped = 7
    absent = NamedProblem("absent", Problem(8, 8, 8))
    text = report(JOURNAL, table, [NamedProblem("mine", P), absent])
    assert f"| mine | 100.00 | 1.0 % | 1.250 | 1.050 | final-1 | 3 | `{NARROW.name}` |" in text
    assert "| 0.500 | 0.400 | screen-1 | 1 |" in text
    assert "cuBLAS default: geometric mean 1.000, faster on 1 of 2" in text, "of finals"
    assert "best cuBLASLt algorithm: geometric mean 0.857, faster on 1 of 2" in text
    assert "a final chose their schedule: 2; listed only, for screens or races did: 1" in text
    assert f"Not in the table, of 2 asked for: {absent.name}." in text
    assert "- audit: 1\n- correct: 4\n" in text
    assert "skipped as unreadable: 7" in text
    assert "By suite" not in text
    suites = {"some": [NamedProblem("mine", P), NamedProblem("small", Problem(64, 64, 64)), absent], "none": [absent]}
    text = report(JOURNAL, table, suites=suites)
    assert "| mine | 100.00 |" in text
    assert "| some | all |  |  | 2 | 1.000 | 0.857 | 0.700 | 1.050 |" in text
    assert "| some | nt | bf16 | 33 to 64 | 1 | 0.800 | 0.700 | 0.700 | 0.700 |" in text
    assert "| none | all |" not in text and "By suite" not in report(JOURNAL, table, suites={"none": [absent]})


def test_long_lists_of_names_are_cut() -> None:
    names = [f"p{i}" for i in range(14)]
    assert some_of(names[:12]) == ", ".join(names[:12])
    assert some_of(names).endswith("p10, p11, and 2 more")


def test_geomean() -> None:
    assert geomean([2.0, None, 0.5]) == pytest.approx(1.0)
    assert geomean([None]) is None
