"""The portfolio: few kernels, what they lose, and only what was measured counts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from journals import FIRST, FOURTH, SECOND, THIRD, measured
from tileseek.heuristics.portfolio import UNSERVED, portfolio
from tileseek.space import BadInput, Problem

P, Q, R = (Problem(m, 4096, 4096) for m in (1024, 2048, 4096))
WALKS = replace(FIRST, swizzle=16)
MEASURES = [
    *(measured(p, s, us) for p, s, us in ((P, FIRST, 10.0), (P, SECOND, 10.4), (P, THIRD, 12.0))),
    *(measured(p, s, us) for p, s, us in ((Q, WALKS, 20.0), (Q, FIRST, 22.0), (Q, SECOND, 20.2))),
    *(measured(p, s, us) for p, s, us in ((R, THIRD, 40.0), (R, SECOND, 41.2), (R, FOURTH, 60.0))),
]


def test_one_kernel_for_all_before_the_best_of_each() -> None:
    few = portfolio(MEASURES, loss=0.05)
    assert [kernel.schedule for kernel in few.kernels] == [SECOND.kernel]
    assert few.geomean[0] == pytest.approx((1.04 * 1.01 * 1.03) ** (1 / 3) - 1)
    assert few.worst[0] == pytest.approx(0.04)
    exact = portfolio(MEASURES, loss=0.0)
    # The second, which joins first, is needed no more beside the others, and leaves.
    assert {kernel.schedule for kernel in exact.kernels} == {FIRST.kernel, THIRD.kernel}
    assert exact.geomean[-1] == pytest.approx(0) and list(exact.geomean) == sorted(exact.geomean, reverse=True)
    # A kernel serves each problem by its best launch there.
    assert {p: s.schedule for p, s in exact.served.items()} == {P: FIRST, Q: WALKS, R: THIRD}


def test_other_kinds_are_other_kernels_and_the_unmeasured_is_no_service() -> None:
    other = replace(P, dtype="fp16", out_dtype="fp16")
    chosen = portfolio([*MEASURES, measured(other, SECOND, 10.0)], loss=0.05)
    assert [(k.kind, k.schedule) for k in chosen.kernels] == [(P.kind, SECOND.kernel), (other.kind, SECOND.kernel)]
    assert chosen.worst[0] == pytest.approx(UNSERVED)
    document = json.loads(json.dumps(chosen.to_json()))
    assert [row["kernels"] for row in document["curve"]] == [1, 2]
    assert {row["schedule"] for row in document["problems"]} == {SECOND.name}


def test_exchanges_find_what_is_greedily_missed() -> None:
    """One kernel serves two problems and two more badly; two others serve two each."""
    problems = [Problem(m, 4096, 4096) for m in (256, 512, 1024, 2048)]
    times = {FIRST: (13.0, 10.0, 10.0, 13.0), SECOND: (10.0, 10.0, 99.0, 99.0), THIRD: (99.0, 99.0, 10.0, 10.0)}
    measures = [measured(p, s, us) for s, row in times.items() for p, us in zip(problems, row, strict=True)]
    chosen = portfolio(measures, loss=0.01)
    assert {kernel.schedule for kernel in chosen.kernels} == {SECOND.kernel, THIRD.kernel}
    assert chosen.geomean[-1] == pytest.approx(0)


def test_thin_problems_can_be_left_out() -> None:
    thin = Problem(64, 4096, 4096)
    assert thin not in portfolio([*MEASURES, measured(thin, FOURTH, 1.0)], loss=0.05, least=3).served
    for bad in ({"loss": 0.05, "least": 9}, {"loss": -0.1}, {"loss": float("nan")}):
        with pytest.raises(BadInput):
            portfolio(MEASURES, **bad)  # type: ignore[arg-type]
