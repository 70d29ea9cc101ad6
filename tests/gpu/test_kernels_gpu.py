"""Random kernels of the whole space, on the GPU: right on odd shapes to the bit, right on normal data, no hang."""

from __future__ import annotations

import itertools
import random
from dataclasses import fields, replace

import pytest
from corners import CORNERS, in_corner
from tileseek.codegen import CompilePool
from tileseek.cost_model.draft import draft
from tileseek.measure.policy import SCREEN
from tileseek.measure.results import Candidate
from tileseek.measure.supervisor import Measurer
from tileseek.space import GEMV, Problem, Schedule, sample, violations
from tileseek.space.rules import CLUSTERS, MULTICAST_KINDS

pytestmark = pytest.mark.gpu

VERIFY = replace(SCREEN, name="verify", rounds=3, slot_ms=0.1, limited_slot_ms=0.1, spacer_ms=0.1, check_seeds=2)

PROBLEMS = [
    *(
        Problem(520, 776, 1032, dtype=dtype, layout=layout)
        for dtype in ("bf16", "fp16")
        for layout in ("nt", "nn", "tn", "tt")
    ),
    Problem(17, 2112, 7168),
    Problem(1, 5000, 4096),
    Problem(304, 264, 20000, layout="tn"),
    Problem(4999, 72, 64),
    Problem(128, 1280, 8192, overlap="weights"),
    *(
        Problem(520, 776, 1032, dtype=dtype, layout=layout, epilogue=epilogue)
        for dtype, layout, epilogue in (
            ("bf16", "nt", "bias+relu+residual"),
            ("bf16", "nt", "bias_m+gelu"),
            ("fp16", "nn", "bias+silu+residual"),
            ("bf16", "tt", "gelu_tanh+residual"),
            ("fp16", "nt", "bias+gelu_tanh"),
            ("bf16", "tn", "bias_m+relu+residual"),
        )
    ),
    Problem(17, 2112, 7168, epilogue="bias+gelu+residual"),
    *(
        Problem(520, 776, 1032, layout=layout, batch=3, broadcast=all_products)
        for layout, all_products in (("nt", ""), ("nn", "b"), ("tn", "a"), ("tt", "ab"))
    ),
    Problem(17, 264, 2048, batch=40, broadcast="a", epilogue="bias_m+gelu+residual"),
    Problem(300, 200, 520, "fp16", batch=5, epilogue="bias+relu+residual", overlap="weights"),
    # Operand rows of any length at multiples of 16 bytes: TMA loads end inside such a unit.
    *(
        Problem(517, 773, 1031, layout=layout, a_align=16, b_align=16, d_align=16)
        for layout in ("nt", "nn", "tn", "tt")
    ),
    Problem(517, 773, 1031, batch=3, a_align=16, b_align=16, d_align=16, epilogue="bias+residual"),
    # Each type of output meets four of the five kinds of scales.
    *(
        Problem(521, 784, 1040, dtype, "nt", 1, out_dtype, epilogue, accumulate=accumulate)
        for (dtype, out_dtype, accumulate), epilogue in zip(
            itertools.product(("fp8", "fp8_e5m2"), ("bf16", "fp16", "fp32", "fp8"), ("fast", "promoted")),
            itertools.cycle(("none", "scale", "scale_m+scale_n", "scale_n+bias+relu", "scale+scale_m+bias_m")),
            strict=False,
        )
    ),
    Problem(521, 784, 1040, "fp8", out_dtype="fp16", epilogue="scale_m+residual"),
    Problem(521, 784, 1040, "fp8", out_dtype="fp32", epilogue="bias_m+relu+residual"),
    Problem(520, 784, 1040, "bf16", "tt", epilogue="scale_m+scale_n+bias+relu+residual"),
    Problem(17, 2120, 7168, "fp8"),
    Problem(300, 208, 528, "fp8", batch=3, broadcast="b", epilogue="scale_m+scale_n"),
    Problem(517, 773, 1031, "fp8", a_align=16, b_align=16, d_align=16, accumulate="promoted"),
    Problem(128, 1280, 8192, "fp8", accumulate="promoted"),
    *(
        Problem(520, 776, 1032, dtype, layout, 1, out_dtype, epilogue)
        for dtype, layout, out_dtype, epilogue in (
            ("bf16", "nt", "fp32", "none"),
            ("bf16", "tn", "fp32", "bias+relu+residual"),
            ("fp16", "nn", "fp32", "bias_m+gelu"),
            ("fp16", "tt", "bf16", "none"),
            ("bf16", "nt", "fp16", "bias+relu"),
        )
    ),
    # Rows that TMA does not take, of A, of B, of D.
    *(Problem(517, 773, 1031, layout=layout) for layout in ("nt", "nn", "tn", "tt")),
    Problem(518, 774, 1030, "fp16", layout="tn", overlap="weights"),
    Problem(516, 772, 1028, layout="nn", epilogue="bias+relu+residual"),
    Problem(520, 773, 1032, epilogue="bias_m+relu+residual"),
    Problem(17, 50257 // 16, 1024),
    Problem(520, 776, 1032, batch=3, a_align=4, b_align=8, broadcast="b"),
    Problem(300, 203, 521, batch=4, layout="nn", epilogue="bias+gelu+residual"),
]


@pytest.fixture(scope="module")
def measurer() -> Measurer:
    with Measurer() as instrument:
        yield instrument


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_random_schedules_are_right(measurer: Measurer, problem: Problem) -> None:
    rng = random.Random(problem.key)
    schedules = list(dict.fromkeys(sample(problem, measurer.device, rng) for _ in range(40)))
    _all_right(measurer, problem, schedules)


def _all_right(measurer: Measurer, problem: Problem, schedules: list[Schedule]) -> None:
    """Nearly all compile, and those that do are right."""
    with CompilePool() as pool:
        kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
    compiled = zip(schedules, kernels, strict=True)
    candidates = [Candidate.of(schedule, kernel) for schedule, kernel in compiled if kernel.status == "ok"]
    assert len(candidates) >= 0.9 * len(schedules)
    results = measurer.measure(problem, candidates, VERIFY)
    assert not {r.schedule.name: (r.status, r.reason) for r in results if not r.correct}


@pytest.mark.parametrize("corner", CORNERS)
def test_full_kernels_are_right(measurer: Measurer, corner: str) -> None:
    _all_right(measurer, *in_corner(corner, 6))


STREAMED = [
    Problem(1, 5000, 4096),
    Problem(2, 2112, 7168, layout="nn"),
    Problem(3, 776, 1032, dtype="fp16", epilogue="bias+gelu+residual"),
    Problem(5, 1288, 8200, dtype="fp16", layout="nn", epilogue="bias_m+relu", overlap="weights"),
    Problem(8, 4096, 4096, overlap="launch"),
    Problem(1288, 8, 4104, layout="tt", epilogue="bias+residual"),
    Problem(999, 8, 4104),
]


@pytest.mark.parametrize("problem", STREAMED, ids=lambda problem: problem.key)
def test_streaming_kernels_are_right(measurer: Measurer, problem: Problem) -> None:
    rng = random.Random(problem.key)
    drawn = (sample(problem, measurer.device, rng) for _ in range(400))
    schedules = list(dict.fromkeys(s for s in drawn if s.arrangement == GEMV))[:40]
    _all_right(measurer, problem, schedules)


def test_weights_stream_at_the_rate_of_memory(measurer: Measurer) -> None:
    """The best of a draft, on weights above 64 MB; prints its share of 4.3 TB/s."""
    for problem in (Problem(1, 28672, 4096), Problem(2, 8192, 8192), Problem(1, 8192, 8192, layout="nn")):
        schedules = [s for s in draft(problem, measurer.device, 40) if s.arrangement == GEMV]
        with CompilePool() as pool:
            kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
        fine = [Candidate.of(s, k) for s, k in zip(schedules, kernels, strict=True) if k.status == "ok"]
        results = [r for r in measurer.measure(problem, fine, SCREEN) if r.correct]
        assert results
        best = min(results, key=lambda r: r.median_us or 1e9)
        share = problem.bytes / 4.3e6 / (best.median_us or 1e9)
        print(f"{problem.key}: {best.median_us:.2f} us, {share:.3f} of 4.3 TB/s, {best.schedule.name}")


@pytest.mark.parametrize("layout", ["nt", "tn"])
@pytest.mark.parametrize("kind", MULTICAST_KINDS)
def test_every_cluster_shares_its_loads(measurer: Measurer, layout: str, kind: str) -> None:
    """With tiles that divide nothing, so that CTAs of the last clusters lie outside the output."""
    problem = Problem(1000, 1048, 712, layout=layout)
    schedules = [
        replace(Schedule.parse(name), cluster_m=m, cluster_n=n, multicast_kind=kind)
        for m, n in CLUSTERS
        if m * n > 1
        for name in (
            "coop2_128x64x64_s3_w1_c1x1_pall_rm8z_reg40-232_tma64x1_kz",
            "pp2_64x96x64_s4_w1_c1x1_pall_rn4_reg40-232_tma32x1",
            "coop1_64x64x64_s2_w0_c1x1_tile_rm1_reg0-0_direct",
        )
    ]
    assert not [reasons for s in schedules if (reasons := violations(problem, s, measurer.device))]
    with CompilePool() as pool:
        kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
    candidates = [Candidate.of(s, k) for s, k in zip(schedules, kernels, strict=True)]
    results = measurer.measure(problem, candidates, VERIFY)
    assert {r.schedule.name: (r.status, r.reason) for r in results if not r.correct} == {}


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        (
            Problem(65536, 33024, 64),
            (
                "pp2_128x200x64_s4_w1_c1x1_pall_rn8z_reg24-240_tma64x1",
                "coop2_128x256x64_s3_w0_c2x1_pall_rm8_reg40-232_tma32x2_leader",
                "coop1_64x128x64_s3_w0_c1x1_tile_rm1_reg0-0_direct",
                "pp2_128x128x64_s4_w1_c1x1_pall_rm8_reg40-232_tma64x1_swap",
            ),
        ),
        (
            Problem(65536, 33024, 64, epilogue="residual"),
            (
                "coop2_128x128x64_s3_w0_c1x1_pall_rm8_reg40-232_tma32x2",
                "coop2_128x128x64_s3_w0_c1x1_pall_rm8_reg40-232_tma32x2_res2",
            ),
        ),
        (
            Problem(128, 65536, 33024),
            (
                "pp2_128x200x64_s4_w1_c1x1_pall_rn8z_reg24-240_tma64x1_kz",
                "coop1_64x128x64_s4_w1_c1x1_tile_rm1_reg0-0_tma64x1_swap_k4_slots",
            ),
        ),
    ],
    ids=("output", "residual", "operand"),
)
def test_more_elements_than_32_bits_count(measurer: Measurer, problem: Problem, names: tuple[str, ...]) -> None:
    schedules = [Schedule.parse(name) for name in names]
    assert not [reasons for s in schedules if (reasons := violations(problem, s, measurer.device))]
    with CompilePool() as pool:
        kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
    candidates = [Candidate.of(s, k) for s, k in zip(schedules, kernels, strict=True)]
    policy = replace(VERIFY, check_seeds=1, race_rounds=1, timeout_s=60.0)
    results = measurer.measure(problem, candidates, policy)
    assert {r.schedule.name: (r.status, r.reason) for r in results if not r.correct} == {}


def test_a_thousand_launches_leave_the_workspace_as_it_was(measurer: Measurer) -> None:
    problem = Problem(64, 1280, 8192)
    names = [
        "coop1_64x64x128_s5_w0_c1x1_tile_rm1_reg0-0_tma16x2_k4_slots",
        "coop1_64x64x128_s5_w0_c1x1_tile_rm1_reg0-0_tma16x2_k4_atomic",
        "coop1_64x64x128_s5_w0_c1x1_pall_rm1_reg0-0_tma16x2_sk_slots",
    ]
    _launch_a_thousand_times(measurer, problem, names)


def test_a_thousand_launches_of_shares(measurer: Measurer) -> None:
    names = [
        "coop2_128x128x64_s5_w0_c1x1_tile_rm1_reg40-232_tma16x2_k32_shares",
        "coop1_64x128x64_s5_w1_c1x1_tile_rm1_reg0-0_tma32x2_k12_shares",
        "coop1_128x64x128_s4_w0_c1x1_tile_rm1_reg0-0_tma16x1_swap_k15_shares",
        "coop1_128x64x64_s6_w1_c1x2_tile_rm1_reg0-0_tma16x2_k16_shares",
    ]
    _launch_a_thousand_times(measurer, Problem(256, 256, 16384), names)


@pytest.mark.parametrize(
    "problem",
    [
        Problem(13, 4096, 4096),
        Problem(100, 1288, 4104),
        Problem(5, 24, 72),
        Problem(40, 264, 8200, epilogue="bias+gelu"),
    ],
    ids=lambda problem: problem.key,
)
def test_clipped_boxes_and_shares_are_right(measurer: Measurer, problem: Problem) -> None:
    rng = random.Random(problem.key)
    drawn = [sample(problem, measurer.device, rng) for _ in range(600)]
    schedules = [s for s in drawn if s.clip_boxes][:20] + [s for s in drawn if s.reduction == "shares"][:20]
    _all_right(measurer, problem, list(dict.fromkeys(schedules)))


@pytest.mark.parametrize(
    "dimension", ["early_fill", "exchange_in_ring", "held_blocks", "parts_apart", "alone_stages", "hands"]
)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(520, 776, 1032, epilogue="bias+relu+residual"),
        Problem(5, 24, 72),
        Problem(100, 1296, 8208, "fp8"),
        Problem(304, 208, 528, batch=3, layout="tn"),
        Problem(20000, 1800, 264),
    ],
    ids=lambda problem: problem.key,
)
def test_schedules_with_a_rare_choice_are_right(measurer: Measurer, problem: Problem, dimension: str) -> None:
    """Of every way to share K, clipped or not; long walks too."""
    rng = random.Random(problem.key)
    usual = next(field.default for field in fields(Schedule) if field.name == dimension)
    drawn = [s for s in (sample(problem, measurer.device, rng) for _ in range(1500)) if getattr(s, dimension) != usual]
    kinds: dict[tuple[object, ...], Schedule] = {}
    for s in drawn:
        share_k = (s.reduction, s.split_k if s.split_cluster else s.split_k > 1, s.stream_k)
        kinds.setdefault((s.arrangement, share_k, s.clip_boxes, s.swap_ab, s.multicast and s.multicast_kind), s)
    _all_right(measurer, problem, list(dict.fromkeys([*kinds.values(), *drawn[:16]])))


def test_a_thousand_launches_of_a_streaming_kernel(measurer: Measurer) -> None:
    names = ["gemv4_2x8x1024_s2_w0_c1x1_tile_rm1_reg0-0_direct_k4_slots"]
    _launch_a_thousand_times(measurer, Problem(2, 1280, 8192), names)
    names = ["gemv2_2x64x64_s4_w0_c1x1_tile_rm1_reg0-0_direct_k12_slots"]
    _launch_a_thousand_times(measurer, Problem(2, 1280, 8192, layout="nn"), names)


def _launch_a_thousand_times(measurer: Measurer, problem: Problem, names: list[str]) -> None:
    schedules = [Schedule.parse(name) for name in names]
    with CompilePool() as pool:
        kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
    candidates = [Candidate(s, k.cubin, k.entry, 0) for s, k in zip(schedules, kernels, strict=True)]
    # Each slot is about a hundred calls, and outputs are compared again after the last.
    results = measurer.measure(problem, candidates, replace(VERIFY, rounds=12, slot_ms=1.5, limited_slot_ms=1.5))
    assert [result.status for result in results] == ["correct"] * len(names)
