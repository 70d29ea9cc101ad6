"""Queries: where answers come from, and that whatever is answered can be launched."""

from __future__ import annotations

import random
import timeit
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import FIFTH, FIRST, FOURTH, SECOND, THIRD, contents, measured
from tileseek.codegen.plan import launch_plan
from tileseek.heuristics.journal import Measure
from tileseek.heuristics.query import Choice, best_schedule, predictor_of
from tileseek.heuristics.table import Table, build_table
from tileseek.space import H100, H200, BadInput, Problem, Schedule, sample, violations
from tileseek.space.rules import SWIZZLES

import tileseek
from tileseek.tables import make_table

SQUARE = Problem(8192, 8192, 8192)
SKINNY = Problem(16, 6144, 4096)

OTHERS = [replace(THIRD, stages=stages) for stages in (2, 3, 5)]


def table(*measures: object) -> Table:
    return build_table(contents(measures or DEFAULT), H200)  # type: ignore[arg-type]


DEFAULT = (
    measured(SQUARE, FIRST, 1700.0, 1.0),
    measured(SQUARE, SECOND, 1800.0, 0.95),
    measured(SKINNY, FOURTH, 20.0, 1.1),
)


def test_exact() -> None:
    choice = best_schedule(SQUARE, table())
    assert (choice.schedule, choice.provenance, choice.expected_us) == (FIRST, "exact", 1700.0)
    assert (choice.workspace, choice.origin) == (0, SQUARE)


@pytest.mark.parametrize(
    "other",
    [
        replace(SQUARE, m=8191),
        replace(SQUARE, n=8200),
        replace(SQUARE, k=8184),
        replace(SQUARE, dtype="fp16", out_dtype="fp16"),
    ],
)
def test_a_problem_that_differs_in_anything_is_not_exact(other: Problem) -> None:
    assert best_schedule(other, table()).provenance != "exact"


def test_nearest_goes_by_the_ratio_of_sizes() -> None:
    """2048 is four times nearer to 8192 than to 16, though 16 is nearer by difference."""
    choice = best_schedule(replace(SQUARE, m=2048), table())
    assert (choice.provenance, choice.schedule, choice.origin) == ("nearest", FIRST, SQUARE)
    choice = best_schedule(replace(SKINNY, m=17), table())
    assert (choice.provenance, choice.schedule, choice.origin) == ("nearest", FOURTH, SKINNY)


def test_the_expected_time_of_the_nearest_is_scaled_to_the_problem() -> None:
    assert best_schedule(replace(SQUARE, m=4096), table()).expected_us == pytest.approx(850, rel=0.15)


def test_a_trained_predictor_answers_from_the_shortlist() -> None:
    """It is trained on times that favour one schedule everywhere, and so picks it where nothing was measured."""
    rng = random.Random(0)
    measures = [
        measured(Problem(m, n, 4096), s, base * m / 1024 * (0.5 if s == FIRST else 1) * rng.uniform(0.99, 1.01))
        for m, n in ((512, 4096), (1024, 4096), (2048, 8192), (4096, 2048), (1024, 1024), (2048, 512))
        for s, base in ((FIRST, 60.0), (SECOND, 61.0), (THIRD, 62.0), (FIFTH, 63.0), *((o, 64.0) for o in OTHERS))
    ]
    known = make_table(contents(measures), H200)
    for overlap in ("none", "launch"):
        choice = best_schedule(Problem(3000, 4096, 4096, overlap=overlap), known, quick=True)
        assert (choice.provenance, choice.schedule, choice.origin) == ("model", FIRST, None)
    # The times of the nearest problems say what the predictor's are worth.
    slower = build_table(contents([replace(m, median_us=2 * m.median_us) for m in measures]), H200, known.predictor)
    twice = best_schedule(choice.problem, slower, quick=True).expected_us
    assert twice == pytest.approx(2 * choice.expected_us)
    assert 10 < choice.expected_us < 1000
    assert known.held_out_regret is not None
    assert make_table(contents(measures[::-1]), H200).dumps() == known.dumps()

    # What was measured for the same sizes without overlap goes before the predictor.
    tuned = Problem(3000, 4096, 4096)
    known = build_table(contents([*measures, measured(tuned, THIRD, 9.0)]), H200, known.predictor)
    choice = best_schedule(replace(tuned, overlap="weights"), known)
    assert (choice.provenance, choice.schedule, choice.origin) == ("nearest", THIRD, tuned)


def test_an_unknown_problem_is_drafted_for_unless_it_has_to_be_quick() -> None:
    """The nearest entries' shares of K fit their own tiles; here a tile has other shares, or none."""
    known = tileseek.load_table(device=H200)
    predictor = predictor_of(known)
    assert predictor is not None
    for problem in (Problem(80, 2056, 40000), Problem(3000, 1304, 9000, layout="tt"), Problem(72, 520, 2000, "fp16")):
        quick, choice = (best_schedule(problem, known, quick=quick) for quick in (True, False))
        assert quick.provenance == choice.provenance == "model"
        assert best_schedule(problem, known, quick=True) is quick
        times = [predictor.expected_us(problem, each.schedule, H200) for each in (choice, quick)]
        assert times[0] < times[1]
        assert not violations(problem, choice.schedule, H200)


def test_a_kind_without_an_entry_is_ranked_too() -> None:
    known = tileseek.load_table(device=H200)
    problem = Problem(500, 3000, 5000, epilogue="alpha+bias+relu")
    assert all(entry.problem.kind != problem.kind for entry in known.entries)
    choice = best_schedule(problem, known)
    assert (choice.provenance, choice.measured_on) == ("model", "H200")
    assert choice.expected_us == pytest.approx(best_schedule(problem.plain, known).expected_us, rel=0.5)
    assert best_schedule(problem, known, quick=True).provenance == "nearest"


@pytest.mark.parametrize("predictor", [{}, {"version": 99, "features": []}, {"version": 1, "features": ["x"]}])
def test_a_predictor_of_another_version_is_a_miss(predictor: dict[str, object]) -> None:
    known = build_table(contents(DEFAULT), H200, predictor=predictor)
    with pytest.warns(UserWarning, match="the table's predictor is not used") as notes:
        answers = [best_schedule(replace(SQUARE, m=m), known) for m in (2048, 3072)]
    assert {answer.provenance for answer in answers} == {"nearest"}
    assert len(notes) == 1


@pytest.mark.parametrize("changes", [{"dtype": "fp16", "out_dtype": "fp16"}, {"layout": "nn"}, {"epilogue": "bias"}])
def test_another_kind_is_answered_by_the_nearest_sizes(changes: dict[str, str]) -> None:
    """Of the kinds that differ least, although another has an entry of the very sizes."""
    decoy = replace(SQUARE, dtype="fp16", out_dtype="fp16", layout="tn", epilogue="bias+relu", m=4096)
    known = table(*DEFAULT, measured(decoy, THIRD, 1.0))
    problem = replace(SQUARE, m=4096, **changes)
    choice = best_schedule(problem, known)
    assert (choice.provenance, choice.schedule, choice.origin) == ("nearest", FIRST, SQUARE)
    assert choice.expected_us == pytest.approx(850, rel=0.2)


def test_a_schedule_of_another_kind_is_moved_to_a_valid_one() -> None:
    """Stores that go around shared memory have no fused epilogue."""
    problem = replace(SQUARE, epilogue="bias+residual")
    assert violations(problem, FIFTH, H200)
    choice = best_schedule(problem, table(measured(SQUARE, FIFTH, 1700.0)))
    assert (choice.provenance, choice.origin, choice.measured_on) == ("nearest", SQUARE, None)
    assert not violations(problem, choice.schedule, H200)
    assert (choice.schedule.tile_m, choice.schedule.tile_n) == (FIFTH.tile_m, FIFTH.tile_n)


def test_an_empty_table_leaves_it_to_analysis() -> None:
    choice = best_schedule(SQUARE, Table(H200, "", "", ()))
    assert (choice.provenance, choice.origin, choice.measured_on) == ("analytic", None, None)
    assert not violations(SQUARE, choice.schedule, H200)


@pytest.mark.parametrize("overlap", ["launch", "weights"])
def test_an_overlap_is_answered_by_the_same_sizes_without(overlap: str) -> None:
    small = replace(SKINNY, overlap=overlap)
    measures = (*DEFAULT, measured(small, THIRD, 15.0))
    choice = best_schedule(replace(SQUARE, overlap=overlap), table(*measures))
    assert (choice.provenance, choice.schedule, choice.origin) == ("nearest", FIRST, SQUARE)
    near = best_schedule(replace(SQUARE, m=4096, overlap=overlap), table(*measures))
    assert (near.provenance, near.schedule, near.origin) == ("nearest", FIRST, SQUARE), "or by the nearest without"
    assert best_schedule(small, table(*measures)).schedule == THIRD, "unless it has an entry itself"
    assert best_schedule(replace(small, m=17), table(*measures)).schedule == THIRD, "or one as near"
    fp16 = replace(SQUARE, overlap=overlap, dtype="fp16", out_dtype="fp16")
    assert best_schedule(fp16, table(*measures)).origin == SQUARE, "the same in a kind that is not known"


def test_a_schedule_that_the_rules_refuse_is_passed_over() -> None:
    """Tables are read from files: an entry may name what cannot run, also for the problem it stands for."""
    broken = replace(FIRST, stages=16)
    assert violations(SQUARE, broken, H200)

    def with_broken(*measures: Measure) -> Table:
        good = table(measured(SQUARE, FIRST, 1500.0, 1.0), *measures)
        (entry,) = good.entries
        return replace(good, entries=(replace(entry, schedule=broken),))

    choice = best_schedule(SQUARE, with_broken(measured(SQUARE, SECOND, 1800.0, 0.9)))
    assert (choice.provenance, choice.schedule) == ("nearest", SECOND), "the alternate"
    assert best_schedule(SQUARE, with_broken()).provenance == "analytic"


def test_another_device_is_never_silently_exact() -> None:
    with pytest.warns(UserWarning, match="tuned on H200, asked is H100"):
        choice = best_schedule(SQUARE, table(), H100)
    assert (choice.provenance, choice.schedule, choice.measured_on) == ("nearest", FIRST, "H200")


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (replace(SQUARE, dtype="fp8", layout="nn"), "layout nn of fp8"),
        (replace(SQUARE, out_dtype="fp32", n=8191), "rows of D lie at multiples of 4 bytes"),
        (replace(SQUARE, out_dtype="fp8"), "out_dtype fp8"),
    ],
)
def test_a_problem_without_a_kernel_is_refused_with_the_reason(problem: Problem, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        best_schedule(problem, table())


def test_what_is_no_problem_is_refused() -> None:
    with pytest.raises(BadInput, match="problem is 'x': valid is a Problem"):
        tileseek.best_schedule("x")  # type: ignore[arg-type]


def test_a_device_that_is_no_hopper_is_refused() -> None:
    with pytest.raises(BadInput, match=r"9\.0"), pytest.warns(UserWarning):
        best_schedule(SQUARE, table(), replace(H200, name="A100", cc="8.0"))


EXTREMES = [
    Problem(1, 8, 8),
    Problem(17, 6144, 4096),
    Problem(100003, 16, 8),
    Problem(1, 262144, 8),
    Problem(16, 16, 2**24),
    Problem(102400, 102400, 64),
]


@pytest.mark.parametrize("problem", EXTREMES, ids=lambda p: p.key)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_answer_can_be_launched(problem: Problem, dtype: str) -> None:
    problem = replace(problem, dtype=dtype, out_dtype=dtype)
    choice = best_schedule(problem, table())
    assert choice.provenance == "nearest"
    assert not violations(problem, choice.schedule, H200)
    assert choice.expected_us > 0
    assert 0 < choice.launch.grid < 2**31


@settings(max_examples=100, deadline=None)
@given(
    m=st.integers(1, 200_000),
    n=st.integers(1, 20_000).map(lambda n: 8 * n),
    k=st.integers(1, 20_000).map(lambda k: 8 * k),
    rng=st.randoms(use_true_random=False),
)
def test_the_launch_is_that_of_the_plan(m: int, n: int, k: int, rng: object) -> None:
    problem = Problem(m, n, k)
    schedule = sample(problem, H200, rng)  # type: ignore[arg-type]
    choice, plan = Choice(problem, H200, schedule, "exact", 1.0, None), launch_plan(problem, schedule)
    launch = choice.launch
    assert (launch.block, launch.cluster, launch.smem) == (plan.block, plan.cluster, plan.smem_bytes)
    assert launch.grid == plan.grid(H200.sm_count // plan.cluster)
    assert (choice.workspace > 0) == schedule.workspace


def test_answers_are_remembered_for_each_device() -> None:
    known = table()
    first = best_schedule(SQUARE, known)
    assert best_schedule(Problem(8192, 8192, 8192), known) is first
    with pytest.warns(UserWarning):
        assert best_schedule(SQUARE, known, H100) is not first


def test_swizzles_of_a_table_stay_valid_for_smaller_grids() -> None:
    """A factor larger than the grid is the same walk, so that no entry is lost to a smaller problem."""
    for swizzle in SWIZZLES:
        known = table(measured(SQUARE, replace(FIFTH, swizzle=swizzle), 9.0))
        assert best_schedule(Problem(1, 8, 8), known).provenance == "nearest"


if __name__ == "__main__":
    known = table()
    print(timeit.timeit(lambda: best_schedule(SQUARE, known), number=100_000) * 10, "us for an exact query")


def test_a_deterministic_problem_gets_what_was_tuned_without_the_promise() -> None:
    split = Schedule.parse("coop1_64x16x128_s6_w0_c1x1_tile_rm1_reg0-0_tma16x1_swap_k4_slots")
    atomic = replace(split, reduction="atomic")
    problem = replace(SKINNY, deterministic=True)
    tuned = table(measured(SKINNY, split, 19.0), measured(SKINNY, atomic, 20.0))
    assert best_schedule(problem, tuned).provenance == "exact"
    tuned = table(measured(SKINNY, atomic, 18.0), measured(SKINNY, split, 19.0))
    assert best_schedule(SKINNY, tuned).schedule == atomic
    choice = best_schedule(problem, tuned)
    assert (choice.schedule, choice.provenance, choice.origin) == (split, "nearest", SKINNY)
