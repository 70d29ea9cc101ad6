"""Boxes without the rows that do not exist: what TMA is told, what the kernel expects, and where it makes sense."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tileseek.codegen import CompilePool, generate, launch_plan
from tileseek.cost_model.analytic import estimate_us
from tileseek.cost_model.draft import draft
from tileseek.space import H200, Problem, Schedule, domain, violations

FEW = Problem(13, 4096, 4096)
WHOLE = Schedule.parse("coop1_64x48x128_s6_w0_c1x1_tile_rm1_reg0-0_tma16x2")
CLIPPED = replace(WHOLE, clip_boxes=True)


@pytest.mark.parametrize(
    ("problem", "changes", "rows"),
    [
        (FEW, {}, (16, 48)),
        (replace(FEW, m=1), {}, (8, 48)),
        (replace(FEW, m=200), {}, (64, 48)),
        (replace(FEW, n=24), {}, (16, 24)),
        (FEW, {"swap_ab": True}, (64, 16)),
        (FEW, {"cluster_m": 2}, (16, 24)),
        (FEW, {"cluster_n": 2}, (32, 48)),  # B's tiles alone
    ],
)
def test_boxes_have_the_rows_that_exist(problem: Problem, changes: dict[str, int], rows: tuple[int, int]) -> None:
    schedule = replace(CLIPPED, **changes)
    assert not violations(problem, schedule, H200)
    plan = launch_plan(problem, schedule)
    assert tuple(spec.box[1] for spec in plan.tensor_maps[:2]) == rows
    # What the peers of a cluster load counts as well.
    sharers = (schedule.cluster_n, schedule.cluster_m)
    assert plan.ints[-1] == sum(128 * 2 * box * peers for box, peers in zip(rows, sharers, strict=True))


def test_the_kernel_is_told_the_bytes_and_serves_every_size() -> None:
    text = generate(FEW, CLIPPED).text
    assert text == generate(replace(FEW, m=2999, n=3032, k=296), CLIPPED).text
    assert "int stage_bytes" in text
    assert "A_STAGE + B_STAGE" not in text
    weights = replace(FEW, overlap="weights")
    early = generate(weights, replace(CLIPPED, dependent_launch="weights")).text
    assert early.count(", stage_bytes);") == 2
    with CompilePool(1) as pool:
        (kernel,) = pool.compile_many([(FEW, CLIPPED)])
    assert kernel.status == "ok", kernel.reason


def test_it_is_offered_where_it_loads_less() -> None:
    assert domain("clip_boxes", WHOLE, FEW, H200) == (False, True)
    for problem, schedule in (
        (replace(FEW, m=64), WHOLE),
        (replace(FEW, m=16, layout="tn"), WHOLE),
        (replace(FEW, n=4112), replace(WHOLE, cluster_n=2)),
    ):
        assert domain("clip_boxes", schedule, problem, H200) == (False,)
    assert any("clip_boxes without" in words for words in violations(replace(FEW, m=16, layout="tn"),
                                                                     replace(CLIPPED, cluster_m=2), H200))  # fmt: skip


def test_the_models_know_what_zeros_cost() -> None:
    assert estimate_us(FEW, CLIPPED, H200) < estimate_us(FEW, WHOLE, H200)
    unswapped = [s for s in draft(FEW, H200, 64) if not s.swap_ab]
    assert unswapped
    assert all(s.clip_boxes for s in unswapped if not s.multicast)
