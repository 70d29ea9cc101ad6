"""The analytic model agrees with what was measured on an H200; draft, ranker and predictor keep their contracts."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import asdict, replace
from statistics import fmean
from zlib import crc32

import pytest
from synthetic import PROBLEMS, journal, measure, true_us
from tileseek.cost_model.analytic import H200_CONSTANTS, analyse, estimate_us, fit, floor_us
from tileseek.cost_model.calibration import calibrate
from tileseek.cost_model.costs import CYCLES, MICROSECONDS, TIME, cost, costs, yardstick
from tileseek.cost_model.draft import PER_TILE, _streamed, analytic_best, draft, tile_of
from tileseek.cost_model.forest import LEAF, MOST_LEAVES, Forest, Tree, read_tree
from tileseek.cost_model.predictor import Predictor
from tileseek.cost_model.ranker import family, train
from tileseek.cost_model.regret import analytic_regret, evaluate, held_out_regret, split_families
from tileseek.heuristics.journal import JournalContents, measure_from_json
from tileseek.space import H200, BadInput, Problem, Schedule, violations

COOP = Schedule.parse("coop2_128x256x64_s4_w0_c2x1_pall_rm8_reg40-232_tma64x2")
PINGPONG = Schedule.parse("pp2_128x192x64_s5_w1_c1x1_pall_rm8_reg24-240_tma64x1")
DECODE = Schedule.parse("coop1_64x64x128_s4_w0_c1x1_pall_rm1_reg0-0_tma64x1")
LARGE = Problem(8192, 8192, 8192)
SHORT = Problem(8192, 32768, 512)


@pytest.fixture(scope="module")
def contents() -> JournalContents:
    return journal(PROBLEMS[::2], each=60)


def tflops(problem: Problem, schedule: Schedule) -> float:
    return problem.flops / estimate_us(problem, schedule, H200) / 1e6


@pytest.mark.parametrize(
    ("extents", "schedule", "measured_us"),
    [
        ((8192, 8192, 8192), "pp2_128x192x64_s5_w1_c2x1_pall_rm8_reg40-232_tma32x1", 1430),
        ((4096, 4096, 4096), "coop2_256x128x64_s4_w0_c1x2_pall_rm8_reg40-232_tma32x2", 186),
        ((2048, 6144, 4096), "pp2_128x192x64_s5_w1_c2x1_pall_rn16_reg40-232_tma32x1", 132),
        ((2048, 2048, 2048), "coop2_128x256x64_s3_w0_c1x1_pall_rn4_reg40-232_tma32x2", 25.3),
        ((8192, 32768, 512), "pp2_128x160x64_s5_w1_c2x1_pall_rn8_reg40-232_tma64x1", 367),
        ((131072, 256, 256), "coop2_128x256x64_s3_w0_c1x1_pall_rn1_reg40-232_tma32x2", 38.6),
        ((64, 28672, 4096), "coop1_64x112x128_s3_w0_c1x2_pall_rn4_reg0-0_tma64x2_efb", 57.8),
        ((64, 7168, 2048), "coop1_64x64x64_s8_w1_c1x1_tile_rm16_reg0-0_tma64x1_swap_efb", 9.5),
        ((16, 6144, 4096), "coop1_64x16x128_s7_w1_c1x1_pall_rm16_reg0-0_tma16x1_swap_efb", 14.7),
        ((16, 6144, 4096), "pp2_256x48x64_s5_w1_c2x1_pall_rn2_reg24-240_direct_l2-64", 120),
        ((16, 10240, 8192), "coop1_64x80x128_s5_w0_c1x1_pall_rn8_reg0-0_tma64x2_efb", 52),
        ((16, 2112, 7168), "coop1_64x16x128_s7_w1_c1x1_tile_rn1_reg0-0_tma16x1_swap_k3_efb", 10.5),
        ((128, 1280, 8192), "coop2_128x88x128_s3_w0_c1x1_tile_rn2z_reg40-232_tma16x2_k8_efb", 10.8),
        ((128, 1280, 8192), "coop2_128x80x128_s3_w0_c1x1_tile_rn8_reg40-232_tma16x2_k8_efb", 16.9),
        ((128, 1280, 8192), "coop2_128x88x128_s3_w0_c1x1_pall_rn8_reg40-232_tma16x2_sk_slots_efb", 17.9),
        ((256, 256, 16384), "coop2_128x64x64_s8_w0_c1x2_tile_rm1_reg40-232_tma64x1_k16_slots_l2-128_straight", 15.0),
        ((256, 256, 16384), "coop2_128x64x64_s8_w0_c1x2_tile_rm1_reg40-232_tma64x1_k16_atomic_l2-128_straight", 11.1),
        ((1488, 160, 14408), "coop2_128x80x64_s7_w0_c2x2_tile_rm4_reg40-232_tma64x2_k5_atomic_efa_l2-128_straight", 20),
        ((4096, 4096, 4104), "pp2_128x192x64_s5_w1_c1x1_pall_rm8_reg40-232_tma32x1_l2-128_straight", 296),
        ((4096, 4096, 4104), "pp2_128x192x64_s5_w1_c2x1_pall_rm8_reg40-232_tma32x1_l2-128_straight", 228),
    ],
)
def test_estimates_agree_with_the_card(extents: tuple[int, int, int], schedule: str, measured_us: float) -> None:
    estimate = estimate_us(Problem(*extents), Schedule.parse(schedule), H200)
    assert estimate == pytest.approx(measured_us, rel=0.15)


def test_the_model_knows_what_is_slow() -> None:
    assert tflops(LARGE, replace(PINGPONG, mma_in_flight=0)) < 0.9 * tflops(LARGE, PINGPONG)
    deep = Schedule.parse("coop2_128x256x128_s2_w0_c1x1_pall_rm8_reg40-232_tma32x1")
    assert tflops(LARGE, replace(deep, mma_in_flight=1)) < 0.9 * tflops(LARGE, deep)
    assert tflops(SHORT, PINGPONG) > 1.08 * tflops(SHORT, COOP)


def test_cliffs_are_known() -> None:
    """One cluster more than the device holds takes a second wave; 104 columns of an operand stored along them are
    slower than 112."""
    part = Schedule.parse("coop1_64x16x128_s4_w0_c1x1_tile_rm1_reg0-0_tma16x1_swap_k6_efb")
    held, beyond = (estimate_us(Problem(16, 64 * clusters, 8192), part, H200) for clusters in (17, 18))
    assert beyond > 1.3 * held
    wide = Schedule.parse("coop2_128x112x64_s6_w1_c1x1_pall_rn4_reg40-232_tma64x2")
    both = [tflops(Problem(4096, 4096, 8192, layout="nn"), replace(wide, tile_n=n)) for n in (112, 104)]
    assert both[1] < 0.9 * both[0]


def test_no_estimate_is_below_the_floor(contents: JournalContents) -> None:
    for m in contents.measures:
        assert estimate_us(m.problem, m.schedule, H200) > 0.97 * floor_us(m.problem, H200)


def test_bands_save_traffic() -> None:
    def traffic(schedule: Schedule) -> float:
        return analyse(LARGE, schedule, H200).traffic

    assert traffic(COOP) < traffic(replace(COOP, swizzle=1))
    assert traffic(replace(COOP, serpentine=True)) < traffic(COOP)
    small = Problem(1024, 1024, 1024)
    assert analyse(small, COOP, H200).traffic == pytest.approx(small.bytes)


def test_fit_recovers_a_constant() -> None:
    truth = replace(H200_CONSTANTS, latency_ns=1300.0)
    problem = Problem(16, 6144, 4096)
    measures = [
        measure(problem, s, estimate_us(problem, s, H200, truth))
        for s in (replace(DECODE, stages=stages, tile_n=n) for stages in (2, 3, 4) for n in (32, 48, 64, 96))
    ]

    def error(constants: object) -> float:
        return max(
            abs(estimate_us(problem, m.schedule, H200, constants) / m.median_us - 1)  # type: ignore[arg-type, operator]
            for m in measures
        )

    assert error(fit(measures, H200)) < 0.02 < error(H200_CONSTANTS)


def test_calibration_checks_itself_on_what_it_did_not_use() -> None:
    truth = replace(H200_CONSTANTS, latency_ns=900.0, launch_ns=2500.0)
    problems = [Problem(16, 6144, 4096), Problem(64, 7168, 2048)]
    tiles = [replace(DECODE, stages=stages, tile_n=n) for stages in (2, 3, 4) for n in range(16, 136, 8)]
    measures = [measure(p, s, estimate_us(p, s, H200, truth)) for p in problems for s in tiles]
    found = calibrate(measures, H200, per_problem=36)
    assert (found.used, found.used + found.checked) == (len(measures) - found.checked, len(measures))
    assert found.after < 0.5 * found.before
    assert found.to_json()["constants"].keys() == asdict(H200_CONSTANTS).keys()
    with pytest.raises(BadInput, match="valid is a larger journal"):
        calibrate(measures[:5], H200)


@pytest.mark.parametrize("problem", [LARGE, Problem(16, 2112, 7168), Problem(1, 8, 8), Problem(1000, 1000, 1000)])
def test_draft_is_valid_ordered_and_diverse(problem: Problem) -> None:
    found = draft(problem, H200, 32, seed=1)
    assert found == draft(problem, H200, 32, seed=1)
    # One output tile of eight columns leaves less to choose from.
    assert len({s.kernel for s in found}) == len(found) >= (32 if problem.m > 1 else 16)
    assert not any(violations(problem, s, H200) for s in found)
    times = [estimate_us(problem, s, H200) for s in found]
    # Made valid, a schedule may take a little less than was estimated.
    assert times[0] <= 1.002 * min(times)
    assert sum(times[:8]) < sum(times[-8:])
    tiles = Counter(tile_of(s) for s in found)
    assert max(tiles.values()) <= PER_TILE
    best = analytic_best(problem, H200)
    assert not violations(problem, best, H200)
    assert estimate_us(problem, best, H200) <= times[0] * 1.02


def test_draft_chooses_as_the_card_would() -> None:
    assert analytic_best(SHORT, H200).arrangement == "pp"
    assert analytic_best(Problem(16, 6144, 4096), H200).tile_n < 64
    assert analytic_best(Problem(16, 1280, 8192), H200).split_k > 1
    assert analytic_best(Problem(256, 256, 65536), H200).split_k > 1


def test_draft_knows_clusters_transposed_tiles_and_residuals() -> None:
    drafted = draft(Problem(512, 2112, 7168), H200, 128)
    assert {(s.cluster_m, s.cluster_n) for s in drafted} > {(1, 1), (2, 1), (1, 2)}
    # 2112 rows of the transposed product make 11 tiles of 192: three shares of K of 44 tiles are one wave.
    assert any(s.swap_ab and s.tile_m == 192 and s.split_k == 3 for s in drafted)
    # Both ways are the same for a square.
    assert not any(s.swap_ab for s in draft(LARGE, H200, 16))
    fetched = draft(Problem(1024, 4096, 1024, epilogue="bias+residual"), H200, 8)
    assert all(s.residual_buffers for s in fetched)
    assert not any(s.swap_ab for s in draft(Problem(512, 4096, 1024, epilogue="silu+gated"), H200, 32))


def test_draft_refuses_what_no_kernel_can_run() -> None:
    with pytest.raises(BadInput, match="multiples of 16 for elements of other than 16 bits"):
        draft(Problem(16, 64, 100, "fp8"), H200, 4)


@pytest.mark.parametrize(
    "problem",
    [
        Problem(3, 64, 64, epilogue="silu+gated", layout="nn"),
        Problem(64, 16, 64, epilogue="gelu+gated+residual", layout="tn"),
        Problem(64, 16, 64, "fp8", epilogue="scale_m+scale_n+silu+gated"),
        Problem(1, 1, 1),
        Problem(5, 16, 16, "fp8", out_dtype="fp8", accumulate="promoted"),
        Problem(2, 3, 5, "fp16", batch=7, layout="tt"),
    ],
    ids=lambda p: p.key,
)
def test_draft_of_outputs_narrower_than_any_tile(problem: Problem) -> None:
    """Kinds differ in the narrowest tile that they have: 128 columns where gated pairs lie along the rows of B."""
    best = analytic_best(problem, H200)
    found = draft(problem, H200, 8)
    assert found
    assert not [s.name for s in (best, *found) if violations(problem, s, H200)]


@pytest.mark.parametrize(
    "problem", [Problem(8, 8, 1 << 20, "fp16", epilogue="alpha+bias_m+gelu_tanh"), Problem(4096, 8, 16384)]
)
def test_draft_of_vectors_holds_nothing_invalid(problem: Problem) -> None:
    """Eight vectors leave few registers, which shares of K take from; CTAs that stream share no loads."""
    tiles = list(_streamed(problem, H200))
    assert tiles
    assert not [s.name for s in tiles if violations(problem, s, H200)]
    assert not violations(problem, analytic_best(problem, H200), H200)


def test_draft_of_rows_that_tma_does_not_take() -> None:
    for problem in (Problem(500, 501, 503), Problem(16, 50257, 768), Problem(300, 200, 100, batch=3, layout="tn")):
        found = draft(problem, H200, 8)
        assert len(found) == 8
        assert not [s.name for s in found if violations(problem, s, H200)]


def test_costs_use_one_yardstick() -> None:
    problem = Problem(4096, 4096, 4096)

    def timed(s: Schedule, mhz: float, problem: Problem = problem, **fields: float) -> object:
        return measure_from_json({**measure(problem, s, 10.0).raw, "clock_mhz": mhz, **fields})

    other = replace(DECODE, stages=3)
    fast = [timed(DECODE, 1850, ratio_cycles=1.1, ratio_to_ref=1.0), timed(other, 1850, ratio_to_ref=1.2)]
    assert yardstick(fast) == TIME  # type: ignore[arg-type]
    assert costs(fast)[other] == pytest.approx(1 / 1.2)  # type: ignore[arg-type]
    slow = [timed(DECODE, 1350, ratio_cycles=1.1), timed(other, 1350, ratio_cycles=1.3)]
    assert yardstick(slow) == CYCLES  # type: ignore[arg-type]
    # What waits for memory takes the same time at any clock: its cycles are the clock's.
    for waiting in (Problem(128, 8192, 8192), Problem(131072, 256, 256), Problem(160, 8192, 8192, dtype="fp8")):
        streamed = [timed(DECODE, 1350, waiting, ratio_cycles=1.1, ratio_to_ref=1.0)]
        assert yardstick(streamed) == TIME  # type: ignore[arg-type]
    failed = measure(problem, DECODE, 1.0, status="timeout")
    assert cost(failed, MICROSECONDS) is None
    assert costs([failed]) == {}


def test_splits_never_share_a_family(contents: JournalContents) -> None:
    held_out = []
    for training, held in split_families(contents.measures, 3):
        assert training and held
        assert not {family(m.problem) for m in training} & {family(m.problem) for m in held}
        held_out += [m.problem for m in held]
    assert Counter(held_out) == Counter(m.problem for m in contents.measures)


def test_ranker_beats_draft_beats_chance_on_unseen_families(contents: JournalContents) -> None:
    shuffled = evaluate(contents.measures, lambda _, s: sorted(s, key=lambda s: crc32(s.name.encode())))
    learned = held_out_regret(contents.measures, H200, folds=4)
    assert analytic_regret(contents.measures, H200).mean < shuffled.mean
    # By how much depends on the draw.
    draws = [journal(PROBLEMS, each=60, seed=seed).measures for seed in range(3)]
    drafts = [analytic_regret(drawn, H200).mean for drawn in draws]
    assert fmean(held_out_regret(drawn, H200, folds=4).mean for drawn in draws) < fmean(drafts) * 2 / 3
    # A tenth of 60 schedules is six: chance keeps the best of one problem in ten.
    assert learned.recall >= 0.5
    assert fmean(held_out_regret(drawn, H200, folds=4, picks=6).mean for drawn in draws) < 0.03
    assert learned.worst_decile <= max(learned.per_problem.values())


def test_training_is_deterministic(contents: JournalContents) -> None:
    assert train(contents.measures, H200, seed=3).to_json() == train(contents.measures, H200, seed=3).to_json()


def test_predictor_equals_ranker(contents: JournalContents) -> None:
    ranker = train(contents.measures, H200)
    predictor = Predictor.from_json(json.loads(json.dumps(ranker.to_json())), H200)
    for problem in (PROBLEMS[0], PROBLEMS[5], Problem(777, 1000, 1024)):
        schedules = draft(problem, H200, 20)
        scores = ranker.scores(problem, schedules, H200)
        assert predictor.scores(problem, schedules, H200) == pytest.approx(scores, abs=1e-12)
        assert len(set(scores)) > 1
        best = ranker.rank(problem, schedules, H200)[0]
        assert predictor.rank(problem, schedules, H200)[0] == best
        expected = ranker.expected_us(problem, best, H200)
        assert predictor.best(problem, schedules, H200) == (best, pytest.approx(expected))
    assert predictor.rank(PROBLEMS[0], [], H200) == []


def test_a_forest_is_what_walks_over_its_trees_come_to() -> None:
    rng = random.Random(0)
    members = [(rng.random(), [_random_tree(rng, 3) for _ in range(count)]) for count in (0, 1, 7)]
    forest = Forest.of(members, "abc")
    for _ in range(500):
        # Values that are thresholds are among them.
        x = [rng.randrange(-1, 9) / 2 for _ in range(3)]
        walked = [first + sum(_walk(tree, x) for tree in trees) for first, trees in members]
        kept = forest.kept({"a": x[0]}) & forest.kept({"c": x[2], "b": x[1]})
        assert forest.values(kept) == pytest.approx(walked, abs=1e-12)
        assert max(map(abs, walked)) <= forest.reach
    assert Forest.of([(2.5, [])], "").values(-1) == [2.5]


def _random_tree(rng: random.Random, features: int) -> Tree:
    """One with as many leaves as there may be, or fewer, its nodes in the order in which they were split."""
    nodes: list[list[float]] = [[LEAF, rng.gauss(0, 1), 0, 0]]
    while len(nodes) < 2 * MOST_LEAVES - 1 and rng.random() < 0.98:
        node = rng.choice([i for i, (feature, *_) in enumerate(nodes) if feature == LEAF])
        nodes[node] = [rng.randrange(features), rng.randrange(8) / 2, len(nodes) + 1, len(nodes)]
        nodes += [[LEAF, rng.gauss(0, 1), 0, 0] for _ in "lr"]
    return read_tree(nodes, features)


def _walk(tree: Tree, x: list[float]) -> float:
    feature, threshold, left, right = tree[0]
    while feature != LEAF:
        feature, threshold, left, right = tree[left if x[feature] <= threshold else right]
    return threshold


def test_predicted_times_are_calibrated(contents: JournalContents) -> None:
    predictor = Predictor.from_json(train(contents.measures, H200).to_json(), H200)
    best = [min(costs(m), key=costs(m).__getitem__) for m in _groups(contents)]
    for group, schedule in zip(_groups(contents), best, strict=True):
        problem = group[0].problem
        assert predictor.expected_us(problem, schedule, H200) == pytest.approx(true_us(problem, schedule), rel=0.15)


def test_bad_predictors_and_too_few_measures_are_refused(contents: JournalContents) -> None:
    good = train(contents.measures, H200).to_json()
    for bad in ({}, {**good, "version": 99}, {**good, "features": ["m"]}, {**good, "members": [1]}):
        with pytest.raises(BadInput):
            Predictor.from_json(bad, H200)
    for number in (0, -1.0, math.nan, math.inf, 10**400, 1e300, "1", True, None, []):
        for name in ("launch_ns", "l2_bytes_per_ns", "clock_drop_mhz", "sharpness"):
            with pytest.raises(BadInput):
                Predictor.from_json({**good, "constants": {**good["constants"], name: number}}, H200)
    for name, number in (("clock_drop_mhz", H200.max_clock_mhz), ("enough_bytes", H200.smem_per_cta), ("other", 1.0)):
        with pytest.raises(BadInput):
            Predictor.from_json({**good, "constants": {**good["constants"], name: number}}, H200)
    leaf = [-1, 0.1, 0, 0]
    deep = [node for place in range(1, 64, 2) for node in ([0, 1.0, place, place + 1], leaf)]
    trees = ([], [[0, 1.0, 0, 0]], [[0, 1.0, 1, 2], leaf], [[999, 1.0, 1, 2], leaf, leaf], [[0, 1.0, 1, 1], leaf])
    for tree in (
        *trees,
        [leaf, leaf],
        [*deep, leaf],
        [[-1, math.nan, 0, 0]],
        [[-1, 1e4, 0, 0]],
        [[-2, 0.1, 0, 0]],
        [[-1]],
        3,
    ):
        with pytest.raises(BadInput):
            Predictor.from_json({**good, "members": [{"first": 0.0, "trees": [tree]}]}, H200)
    with pytest.raises(BadInput):
        Predictor.from_json({**good, "bias": math.nan}, H200)
    with pytest.raises(BadInput, match="to learn from"):
        train(contents.measures[:5], H200)


def _groups(contents: JournalContents) -> list[list]:  # type: ignore[type-arg]
    groups: dict[Problem, list] = {}  # type: ignore[type-arg]
    for m in contents.measures:
        groups.setdefault(m.problem, []).append(m)
    return list(groups.values())
