"""The space: rules, names, the walk over tiles, enumeration and sampling, problem keys, suites."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tileseek.problems import suite, suite_names
from tileseek.space import (
    ALL_VALUES,
    DIMENSIONS,
    H100,
    H200,
    KERNEL_DIMENSIONS,
    LAUNCH_FIELDS,
    LAYOUTS,
    BadInput,
    Pitches,
    Problem,
    Schedule,
    ceil_div,
    domain,
    draw,
    enumerate_schedules,
    enumeration,
    find_device,
    nearest,
    neighbours,
    read_suite,
    rules,
    sample,
    tile_grid,
    tile_position,
    violations,
)

LARGE = Problem(8192, 8192, 8192)
GOOD = Schedule("coop", 2, 128, 256, 64, 3, cluster_m=2, swizzle=8, producer_regs=40, consumer_regs=232)

PROBLEMS = st.builds(
    Problem,
    m=st.integers(1, 20_000),
    n=st.integers(1, 2_500).map(lambda n: 8 * n),
    k=st.integers(1, 2_500).map(lambda k: 8 * k),
    dtype=st.sampled_from(["bf16", "fp16"]),
    out_dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
) | st.builds(
    Problem,
    m=st.integers(1, 20_000),
    n=st.integers(1, 1_250).map(lambda n: 16 * n),
    k=st.integers(1, 1_250).map(lambda k: 16 * k),
    dtype=st.sampled_from(["fp8", "fp8_e5m2"]),
    out_dtype=st.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
    accumulate=st.sampled_from(["fast", "promoted"]),
    epilogue=st.sampled_from(["none", "bias+relu", "scale", "scale_m+scale_n", "scale_n+bias_m+gelu"]),
)


# Rules


def test_a_good_schedule_breaks_no_rule() -> None:
    assert violations(LARGE, GOOD, H200) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arrangement": "solo"}, "arrangement solo"),
        ({"consumers": 4}, "4 consumer warpgroups"),
        ({"arrangement": "pp", "consumers": 3}, "3 consumer warpgroups in pp"),
        ({"tile_m": 100}, "tile_m 100"),
        ({"tile_m": 64}, "tile_m 64 for 2 warpgroups"),
        ({"tile_n": 260}, "tile_n 260"),
        ({"tile_k": 32}, "tile_k 32"),
        ({"stages": 1}, "stages 1"),
        ({"stages": 5}, "bytes of shared memory"),
        ({"mma_in_flight": 2}, "mma_in_flight 2"),
        ({"cluster_m": 3}, "cluster 3x1"),
        ({"cluster_m": 4, "tile_n": 248}, "sliced over 4 CTAs"),
        ({"cluster_m": 4, "cluster_n": 4}, "cluster 4x4: valid are 1x1, 2x1, 1x2, 2x2, 4x1, 1x4, 2x4, 4x2"),
        ({"cluster_m": 8, "cluster_n": 2}, "cluster 8x2"),
        ({"multicast_kind": "all"}, "multicast_kind all"),
        ({"multicast_kind": "leader", "cluster_m": 1}, "multicast_kind leader without a cluster"),
        ({"split_k": 2, "persistent": False}, "split_k 2 with cluster 2x1"),
        ({"split_k": 20, "cluster_m": 1, "persistent": False}, "split_k 20 of a cluster: valid is at most 16"),
        ({"split_k": 2, "cluster_m": 1}, "split_k 2 of a cluster in a persistent kernel"),
        ({"reduction": "slots"}, "reduction slots of whole tiles"),
        ({"stream_k": True}, "reduction cluster with stream_k"),
        ({"split_k": 17, "cluster_m": 1, "reduction": "slots"}, "split_k 17: valid are 1, 2, 3, 4, 5, 6,"),
        ({"alone_stages": 2}, "alone_stages 2 without"),
        ({"alone_stages": 4, "straight_start": True, "stages": 3}, "alone_stages 4 of 3 stages: valid are 0, 1, 2"),
        ({"parts_apart": True}, "parts_apart where CTAs share loads"),
        ({"hands": 3}, "hands 3: valid are 1, 2, 4, 8"),
        ({"hands": 2, "persistent": False}, "hands 2 without persistence"),
        ({"residual_buffers": 2}, "2 residual buffers without a residual"),
        ({"dependent_launch": "wait"}, "dependent_launch 'wait' where the overlap is none"),
        ({"producer_regs": 24, "consumer_regs": 240, "evict_first": "a"}, "24 registers for a producer"),
        ({"ctas": 131}, "131 CTAs"),
        ({"ctas": 134}, "134 CTAs"),
        ({"ctas": 128, "persistent": False}, "without persistence"),
        ({"k_zigzag": True, "persistent": False}, "k_zigzag without persistence"),
        ({"raster": "k"}, "raster k"),
        ({"swizzle": 3}, "swizzle 3"),
        ({"swizzle": 0}, "swizzle 0"),
        ({"store": "none"}, "store none"),
        ({"store": "direct", "epilogue_n": 32}, "epilogue chunk with direct stores"),
        ({"epilogue_n": 48}, "epilogue_n 48"),
        ({"epilogue_buffers": 3}, "epilogue_buffers 3"),
        ({"tile_n": 32}, "epilogue_n 64 for tile_n 32"),
        ({"tile_n": 64, "epilogue_buffers": 2}, "2 epilogue buffers for 1 chunks"),
        ({"producer_regs": 24}, "registers 24-232"),
        ({"tile_m": 256}, "256 accumulator registers a thread: valid is at most 192"),
    ],
)
def test_each_rule_names_the_value_it_refuses(changes: dict[str, Any], reason: str) -> None:
    reasons = violations(LARGE, replace(GOOD, **changes), H200)
    assert any(reason in words for words in reasons), reasons


def test_a_batch_has_no_single_stage_that_is_filled_alone() -> None:
    alone = replace(GOOD, alone_stages=1, straight_start=True)
    assert violations(LARGE, alone, H200) == []
    reasons = violations(replace(LARGE, batch=2), replace(alone, stages=3), H200)
    assert reasons == ["alone_stages 1 of 3 stages of a batch: valid are 0, 2"]
    assert 1 not in domain("alone_stages", alone, replace(LARGE, batch=2), H200)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(64, 64, 72, "bf16"), ""),
        (Problem(64, 64, 68, "bf16"), "load tma of rows at multiples of bytes, of A 8 and B 8: valid is copy"),
        (Problem(64, 67, 64, "fp16"), "store tma of rows at multiples of 2 bytes: valid is copy"),
        (Problem(64, 67, 64, "fp16", out_dtype="fp32"), "rows of D lie at multiples of 4 bytes"),
        (Problem(64, 64, 64, b_align=4), "of A 16 and B 4: valid is copy"),
        (Problem(63, 64, 59, a_align=16, b_align=16), ""),
        (Problem(63, 61, 59, a_align=16, b_align=16, d_align=16), "store tma of rows at multiples of 2 bytes"),
        (Problem(64, 64, 64, batch=3), ""),
        (Problem(64, 64, 64, batch=2**24), "m x n x batch"),
        (Problem(64, 64, 128, "fp8"), "tile_k 64 of fp8"),
        (Problem(64, 64, 136, "fp8"), "rows of A lie at multiples of 8 bytes"),
        (Problem(64, 64, 128, "fp8_e5m2", "tn"), "layout tn of fp8_e5m2: valid is nt"),
        (Problem(64, 72, 128, "fp8", out_dtype="fp8"), "rows of D lie at multiples of 8 bytes"),
        (Problem(64, 64, 128, "fp8", out_dtype="fp8", epilogue="residual"), "a residual of out_dtype fp8"),
        (Problem(64, 64, 64, out_dtype="fp8"), "out_dtype fp8 of bf16 operands"),
        (Problem(64, 64, 64, accumulate="promoted"), "accumulate promoted of bf16"),
        (Problem(64, 64, 64, out_dtype="fp32"), "epilogue_n 64 of fp32"),
    ],
)
def test_problems_without_a_kernel(problem: Problem, reason: str) -> None:
    reasons = violations(problem, replace(GOOD, cluster_m=1, swizzle=1), H200)
    assert (reason in "; ".join(reasons)) if reason else not reasons


def test_more_tiles_than_a_grid_holds() -> None:
    small = nearest({"arrangement": "coop", "consumers": 1, "tile_m": 64, "tile_n": 16}, LARGE, H200)
    huge = Problem(2**31 - 8, 2**31 - 8, 64)
    assert any("tiles: valid is at most" in words for words in violations(huge, small, H200))


# Names and JSON


@settings(max_examples=200, deadline=None)
@given(problem=PROBLEMS, seed=st.integers(0, 2**32))
def test_samples_are_valid_and_read_back(problem: Problem, seed: int) -> None:
    schedule = sample(problem, H200, random.Random(seed))
    assert violations(problem, schedule, H200) == []
    assert Schedule.parse(schedule.name) == schedule
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert schedule.kernel == schedule.kernel.kernel
    assert Problem.from_json(problem.to_json()) == problem


@pytest.mark.parametrize(
    "name", ["", "coop2", GOOD.name + "_", GOOD.name.replace("x64", "x-64"), "COOP" + GOOD.name[4:]]
)
def test_a_text_that_is_no_name_is_bad_input(name: str) -> None:
    with pytest.raises(BadInput, match="schedule is"):
        Schedule.parse(name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("coop2", "coop", "'coop' stands where one like coop2 belongs"),
        ("_w0", "", "'c2x1' stands where one like w0 belongs"),
        ("_c2x1", "_c2", "'c2' stands where one like c2x1 belongs"),
        ("_tma64x2", "", "'' stands where one like tma64x2 belongs"),
        ("_tma64x2", "_tma64x2_slot", "'slot' is unknown, or in the wrong place"),
        ("_tma64x2", "_tma64x2_k2_kz", "'kz' is unknown, or in the wrong place"),
    ],
)
def test_a_wrong_name_of_a_schedule_says_what_is_wrong(old: str, new: str, message: str) -> None:
    name = "coop2_128x256x64_s4_w0_c2x1_pall_rm8_reg40-232_tma64x2"
    assert Schedule.parse(name).name == name
    with pytest.raises(BadInput) as refused:
        Schedule.parse(name.replace(old, new))
    assert str(refused.value).endswith(f"; {message}")


@pytest.mark.parametrize(
    "obj", [{}, {"tile_q": 1}, {**GOOD.to_json(), "stages": "3"}, {**GOOD.to_json(), "swizzle": True}]
)
def test_an_object_that_is_no_schedule_is_bad_input(obj: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        Schedule.from_json(obj)


def test_launch_fields_are_all_that_kernels_do_not_see() -> None:
    changed = replace(GOOD, persistent=False, ctas=0, raster="n", swizzle=1, serpentine=True)
    assert changed.kernel == GOOD.kernel
    assert set(KERNEL_DIMENSIONS) | set(LAUNCH_FIELDS) == set(DIMENSIONS) == {field.name for field in fields(Schedule)}


# The walk over tiles


@settings(max_examples=300, deadline=None)
@given(
    tiles_m=st.integers(1, 40),
    tiles_n=st.integers(1, 40),
    raster=st.sampled_from(rules.RASTERS),
    swizzle=st.integers(1, 48),
    serpentine=st.booleans(),
    batch=st.integers(1, 5),
)
def test_every_tile_is_walked_over_once(
    tiles_m: int, tiles_n: int, raster: str, swizzle: int, serpentine: bool, batch: int
) -> None:
    tiles = tiles_m * tiles_n * batch
    walk = [tile_position(i, tiles_m, tiles_n, raster, swizzle, serpentine) for i in range(tiles)]
    assert sorted(walk) == list(itertools.product(range(tiles_m), range(tiles_n), range(batch)))


@given(tiles_m=st.integers(1, 30), tiles_n=st.integers(1, 30), swizzle=st.integers(1, 32))
def test_the_two_rasters_mirror_each_other(tiles_m: int, tiles_n: int, swizzle: int) -> None:
    for i in range(tiles_m * tiles_n):
        m, n, batch = tile_position(i, tiles_m, tiles_n, "m", swizzle, True)
        assert tile_position(i, tiles_n, tiles_m, "n", swizzle, True) == (n, m, batch)


def test_serpentine_bands_meet_where_they_turn() -> None:
    """The last column of a band is the first of the next, whose operand is still in L2."""
    walk = [tile_position(i, 8, 5, "m", 4, True) for i in range(40)]
    assert walk[19][1] == walk[20][1] == 4


@given(problem=PROBLEMS, seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_swizzle_adds_no_tile(problem: Problem, seed: int) -> None:
    schedule = sample(problem, H200, random.Random(seed))
    grid = tile_grid(problem, schedule)
    for swizzle in rules.SWIZZLES:
        assert tile_grid(problem, replace(schedule, swizzle=swizzle)) == grid
    rows, columns = (problem.n, problem.m) if schedule.swap_ab else (problem.m, problem.n)
    assert grid.m == ceil_div(rows, schedule.tile_m * schedule.cluster_m)
    assert grid.n == ceil_div(columns, schedule.tile_n * schedule.cluster_n)


# Enumeration and sampling


def enumerated(problem: Problem, names: tuple[str, ...], most: int) -> list[Schedule]:
    """Schedules of an enumeration, thinned out to `most` or a few more of them."""
    everything = enumerate_schedules(problem, H200, nearest({}, problem, H200), names)
    return list(itertools.islice(everything, 0, 40 * most, 37))


@pytest.mark.parametrize(
    "problem",
    [LARGE, Problem(16, 6144, 4096, "fp16"), Problem(1, 8, 8), Problem(1000, 1000, 1000)],
    ids=lambda p: p.key,
)
def test_enumeration_is_valid_and_without_repeats(problem: Problem) -> None:
    found = enumerated(problem, tuple(DIMENSIONS), 400)
    assert len(set(found)) == len(found) > 100
    for schedule in found:
        assert violations(problem, schedule, H200) == []
    ways = list(enumerate_schedules(problem, H200, GOOD.kernel, LAUNCH_FIELDS))
    assert len(set(ways)) == len(ways)
    assert {way.kernel for way in ways} == {GOOD.kernel}


RICH = [
    *(replace(LARGE, overlap="weights", epilogue=epilogue) for epilogue in ("none", "residual")),
    *(Problem(m, 4096, 4096, layout=layout, overlap="weights") for m, layout in ((1, "nt"), (2, "nn"), (8, "nt"))),
    Problem(4096, 8, 4096, overlap="weights"),
    Problem(3, 4096, 4096),
    Problem(4095, 4095, 4095),
]
"""Problems on which, between them, every dimension has all its values."""

SAMPLED = [
    (problem, sample(problem, H200, random.Random(seed)))
    for problem in RICH
    for seed in range(400 if problem.m in (1, LARGE.m) else 100)
] + [
    (problem, sample(problem, H200, random.Random(seed)))
    for problem in (Problem(2048, 2048, 64 * blocks) for blocks in rules.HELD_BLOCKS[1:])
    for seed in range(16)
]

VALUES = {**ALL_VALUES, "producer_regs": (0, 24, 32, 40)}


def test_every_dimension_has_its_values_listed() -> None:
    assert set(VALUES) == set(DIMENSIONS)


@pytest.mark.parametrize("name", list(DIMENSIONS))
def test_every_value_of_every_dimension_is_reachable(name: str) -> None:
    """By sampling, or by one step from a sample, as a search polishes."""
    missing = set(VALUES[name]) - {getattr(schedule, name) for _, schedule in SAMPLED}
    for value in missing:
        steps = (nearest({**schedule.to_json(), name: value}, problem, H200) for problem, schedule in SAMPLED)
        assert any(getattr(schedule, name) == value for schedule in steps), value


@pytest.mark.parametrize("name", list(DIMENSIONS))
def test_no_value_outside_its_dimension_is_proposed(name: str) -> None:
    assert {getattr(schedule, name) for _, schedule in SAMPLED} <= set(VALUES[name])


@settings(max_examples=60, deadline=None)
@given(problem=PROBLEMS, seed=st.integers(0, 2**32))
def test_nearest_and_neighbours_are_valid(problem: Problem, seed: int) -> None:
    schedule = sample(problem, H200, random.Random(seed))
    assert nearest(schedule.to_json(), problem, H200) == schedule, "a valid schedule is its own nearest"
    wish = sample(LARGE, H200, random.Random(seed)).to_json()
    assert violations(problem, nearest(wish, problem, H200), H200) == []
    around = neighbours(schedule, problem, H200)
    assert schedule not in around
    assert len(set(around)) == len(around) > 0
    assert not [other for other in around if violations(problem, other, H200)]


def test_domains_of_a_walk_hold_what_was_chosen() -> None:
    for problem, schedule in SAMPLED[::10]:
        chosen = nearest({}, problem, H200)
        for name in DIMENSIONS:
            assert getattr(schedule, name) in domain(name, chosen, problem, H200), name
            chosen = replace(chosen, **{name: getattr(schedule, name)})


# Problems


FIELDS: dict[str, Any] = {
    "m": st.integers(1, 50),
    "n": st.integers(1, 50),
    "k": st.integers(1, 50),
    "batch": st.integers(1, 12),
    "dtype": st.sampled_from(["bf16", "fp16", "fp8", "fp8_e5m2"]),
    "layout": st.sampled_from(["nt", "nn", "tn", "tt"]),
    "out_dtype": st.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
    "accumulate": st.sampled_from(["fast", "promoted"]),
    "overlap": st.sampled_from(["none", "launch", "weights"]),
    "broadcast": st.sampled_from(["", "a", "b", "ab"]),
    "a_align": st.sampled_from([0, 4, 8, 16]),
    "b_align": st.sampled_from([0, 4, 8, 16]),
    "d_align": st.sampled_from([0, 4, 8, 16]),
    "deterministic": st.booleans(),
}


@given(one=st.fixed_dictionaries(FIELDS), other=st.fixed_dictionaries(FIELDS), name=st.sampled_from(list(FIELDS)))
def test_problems_that_differ_in_one_field_have_different_keys(
    one: dict[str, Any], other: dict[str, Any], name: str
) -> None:
    a, b = Problem(**one), Problem(**{**one, name: other[name]})
    assert (a.key == b.key) == (a == b)
    assert (a.to_json() == b.to_json()) == (a == b)
    assert Problem.from_json(a.to_json()) == a
    # Broadcast means nothing without a batch, and an alignment may be that of rows without padding.
    assert (a == b) == (one[name] == other[name]) or name == "broadcast" or name.endswith("_align")


def test_alignments_are_those_of_rows_without_padding_unless_said() -> None:
    odd = Problem(100, 101, 102, layout="nt")
    assert [odd.alignment(matrix) for matrix in "abd"] == [4, 4, 2]
    assert replace(odd, a_align=4) == odd
    padded = replace(odd, b_align=16)
    assert padded.alignment("b") == 16
    assert padded.key == odd.key + "_b_align-16"
    assert padded.kind != odd.kind == odd.resized(10, 11, 12).kind
    assert odd.resized(8, 8, 8).alignment("d") == 2
    assert replace(odd, d_align=16) == odd, "TMA writes 16-byte units: rows of D must end at one as well"
    with pytest.raises(BadInput, match="a_align is 3: valid are 2, 4, 8, 16, or 0"):
        replace(odd, a_align=3)


@given(
    m=st.integers(1, 300),
    n=st.integers(1, 300),
    k=st.integers(1, 300),
    batch=st.integers(1, 3),
    layout=st.sampled_from(LAYOUTS),
    align=st.tuples(*[st.sampled_from([0, 2, 4, 8, 16])] * 3),
    broadcast=st.sampled_from(["", "a", "b"]),
)
def test_pitches_have_just_the_alignments_of_their_problem(
    m: int, n: int, k: int, batch: int, layout: str, align: tuple[int, int, int], broadcast: str
) -> None:
    a, b, d = align
    problem = Problem(m, n, k, layout=layout, batch=batch, broadcast=broadcast, a_align=a, b_align=b, d_align=d)
    pitches = Pitches.of(problem)
    for matrix in "abd":
        rows, columns = problem.stored(matrix)
        pitch = getattr(pitches, matrix)
        assert columns <= pitch.row <= columns + 15
        assert math.gcd(16, 2 * pitch.row) == problem.alignment(matrix)
        assert pitch.batch == (0 if matrix in problem.broadcast else rows * pitch.row)


def test_an_operand_that_all_products_share_is_read_once() -> None:
    batch = Problem(64, 128, 256, batch=10)
    assert batch.bytes == 10 * Problem(64, 128, 256).bytes
    assert batch.bytes - replace(batch, broadcast="b").bytes == 9 * 128 * 256 * 2
    assert replace(batch, batch=1, broadcast="b") == Problem(64, 128, 256)


@pytest.mark.parametrize("value", [0, -1, 2**31, 1.0, "8", True, None])
@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
def test_sizes_are_positive_integers(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"{name} is {value!r}: valid is an integer"):
        Problem(**{"m": 8, "n": 8, "k": 8, name: value})


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [("dtype", "int8", "bf16"), ("layout", "xy", "nt"), ("out_dtype", "fp64", "fp32"), ("epilogue", "gelu?", "none")],
)
def test_words_are_those_of_the_space(name: str, value: str, valid: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is .*valid (are|is) .*{valid}"):
        Problem(8, 8, 8, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "scales"),
    [
        ("none", ()),
        ("scale", ("scale",)),
        ("scale_m+scale_n+bias+gelu+residual", ("scale_m", "scale_n")),
        ("scale+scale_m+relu", ("scale", "scale_m")),
    ],
)
def test_scales_of_an_epilogue(text: str, scales: tuple[str, ...]) -> None:
    assert Problem(16, 16, 16, epilogue=text).fused.scales == scales


@pytest.mark.parametrize("text", ["scale_n+scale_m", "scale+scale", "bias+scale", "scale_k", "none+scale"])
def test_scales_out_of_order_are_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match=r"epilogue is .*valid is none, or joined by \+ .*scale, scale_m, scale_n"):
        Problem(16, 16, 16, epilogue=text)


@pytest.mark.parametrize("obj", [{}, {"m": 8}, {**LARGE.to_json(), "q": 1}, {**LARGE.to_json(), "a_major": "x"}, None])
def test_an_object_that_is_no_problem_is_bad_input(obj: Any) -> None:
    with pytest.raises(BadInput):
        Problem.from_json(obj)


# Suites


HEADER = "name,layout,dtype,m,n,k"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the header is ''"),
        ("name,m,n,k\n", "the header is 'name,m,n,k': valid is name,layout,dtype,m,n,k"),
        (f"{HEADER},speed\n", "speed"),
        (f"{HEADER},m\n", "the header is"),
        (f"{HEADER}\n", "no problems in it"),
        (f"{HEADER}\na,nt,bf16,1,8\n", "line 2: 5 cells where the header has 6"),
        (f"{HEADER}\na,nt,bf16,1,8,8\na,nt,bf16,2,8,8\n", "line 3: the name 'a' is used twice"),
        (f"{HEADER}\n,nt,bf16,1,8,8\n", "the name '' is empty"),
        (f"{HEADER}\na,nt,bf16,one,8,8\n", "line 2: m is 'one'"),
        (f"{HEADER}\na,nt,bf16,0,8,8\n", "line 2: m is 0"),
        (f"{HEADER}\na,nt,int4,1,8,8\n", "line 2: dtype is 'int4'"),
        (f"{HEADER}\na,nt,bf16,,8,8\n", "line 2: m is empty"),
        (f"{HEADER},batch\na,nt,bf16,1,8,8,1.5\n", "line 2: batch is '1.5'"),
    ],
)
def test_a_wrong_suite_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "suite.csv"
    path.write_text(text)
    with pytest.raises(BadInput) as refused:
        read_suite(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_unreadable_suites(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "binary.csv"):
        with pytest.raises(BadInput, match="cannot read"):
            read_suite(path)
    with pytest.raises(BadInput, match="valid is UTF-8"):
        read_suite(tmp_path / "binary.csv")


def test_messages_stay_short() -> None:
    with pytest.raises(BadInput, match="broadcast is 'c': valid are empty, a, b, ab"):
        Problem(8, 8, 8, batch=2, broadcast="c")
    for value in ("x" * 5000, "[" * 100):
        with pytest.raises(BadInput) as refused:
            Problem(8, 8, 8, dtype=value)
        assert len(str(refused.value)) < 120


def test_optional_columns(tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    path.write_text(f"\ufeff{HEADER},batch,out_dtype,epilogue\na,nt,fp8,1,8,16,4,fp16,none\n\nb,nn,bf16,1,8,16,,,\n")
    assert [(named.name, named.problem) for named in read_suite(path)] == [
        ("a", Problem(1, 8, 16, "fp8", "nt", 4, "fp16")),
        ("b", Problem(1, 8, 16, "bf16", "nn")),
    ]


def test_bundled_suites() -> None:
    assert suite_names() == [
        *("decode", "decode_overlap", "epilogue", "gemv", "headline", "headline_nt", "llm", "noise", "nvfuser_sample"),
        *("odd", "oracle"),
    ]
    assert [len(suite(name)) for name in suite_names()] == [52, 52, 23, 34, 25, 22, 139, 6, 300, 7, 42]
    with pytest.raises(BadInput, match="decode, decode_overlap, epilogue, gemv, headline, headline_nt, llm, noise, nv"):
        suite("../headline")


def test_devices_are_found_by_name_and_alias() -> None:
    assert find_device("h200") is find_device("NVIDIA H200") is H200
    assert find_device("NVIDIA H100 80GB HBM3") is H100
    for name in ("NVIDIA H200 NVL", "H20-3e", "NVIDIA H200 MIG 1g.18gb", ""):
        with pytest.raises(BadInput, match="valid are H200"):
            find_device(name)


def test_what_is_not_asked_for_leaves_no_trace(tmp_path: Path) -> None:
    """Keys and objects of problems that need not be deterministic are those of before there was the field."""
    assert "deterministic" not in LARGE.key
    assert "deterministic" not in LARGE.to_json()
    asked = replace(LARGE, deterministic=True)
    assert Problem.from_json(asked.to_json()) == asked
    path = tmp_path / "suite.csv"
    path.write_text(f"{HEADER},deterministic\na,nt,bf16,8192,8192,8192,true\nb,nt,bf16,8192,8192,8192,\n")
    assert [named.problem for named in read_suite(path)] == [asked, LARGE]
    path.write_text(f"{HEADER},deterministic\na,nt,bf16,8192,8192,8192,perhaps\n")
    with pytest.raises(BadInput, match="line 2: deterministic is 'perhaps': valid are True, False"):
        read_suite(path)


def test_draws_stand_for_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of what draws stand for is the number of schedules, also of those with a property."""
    names = ("arrangement", "consumers", "load", "tile_m", "tile_n", "tile_k")
    monkeypatch.setattr(enumeration, "DIMENSIONS", {name: enumeration.DIMENSIONS[name] for name in names})
    rng = random.Random(0)
    draws = [draw(LARGE, H200, rng) for _ in range(1000)]
    space = list(enumerate_schedules(LARGE, H200, names=names))
    assert sum(weight for _, weight in draws) / len(draws) == pytest.approx(len(space), rel=0.1)
    pingpong = sum(weight for s, weight in draws if s.arrangement == "pp") / len(draws)
    assert pingpong == pytest.approx(sum(s.arrangement == "pp" for s in space), rel=0.2)
