"""What measuring resolves: margins, declared ties, energy between two steps of a counter, changed conditions."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import typer
from fake_gpu import FakeSample
from journals import FIRST, SECOND, THIRD, contents, measured
from tileseek.heuristics.journal import Measure, read_journal
from tileseek.heuristics.noise import (
    SIGMAS,
    UNMEASURED,
    Margins,
    Noise,
    clock_repeats,
    read_noise,
    read_rows,
    resolvable,
    scatter,
)
from tileseek.heuristics.report import noise_table
from tileseek.heuristics.selection import cost_intervals, select, select_final
from tileseek.heuristics.table import build_table, load_table
from tileseek.measure.conditions import BRAKES, steady
from tileseek.measure.energy import mean_power_w
from tileseek.measure.nvml import NvmlError
from tileseek.measure.policy import BURST_FINAL, FINAL, SCREEN
from tileseek.measure.results import Candidate, Result
from tileseek.measure.scoring import Field, score
from tileseek.measure.stats import estimate
from tileseek.space import H200, OBJECTIVES, BadInput, NamedProblem, Problem, bottleneck

P = Problem(4096, 4096, 4096)
SIGMA = 0.002


def final(schedule: Any, ratio: float, cycles: float | None = None, **changes: Any) -> Measure:
    return measured(P, schedule, 100 / ratio, ratio, ratio_cycles=cycles, policy="final-1", **changes)


# ---- selections


def test_twenty_selections_give_one_winner_or_a_declared_tie() -> None:
    """Schedules that are equal or nearly so, times scattered as measured: who won most of the selections wins each of
    them, or is declared tied."""
    noise = Noise({"final": {"memory": {"time": SIGMAS * math.sqrt(2) * SIGMA, "cycles": 0.001}}})
    rng = random.Random(0)
    undeclared = 0
    problem = Problem(16, 57344, 8192)
    for _ in range(500):
        slower = {FIRST: 0.0, SECOND: rng.choice((0.0, 0.002, 0.004)), THIRD: rng.choice((0.0, 0.003, 0.006))}
        selections = []
        for _ in range(20):
            ratios = {s: rng.gauss(1.0 - by, SIGMA) for s, by in slower.items()}
            measures = [measured(problem, s, 220 / ratio, ratio, policy="final-1") for s, ratio in ratios.items()]
            selection = select_final(measures, H200, noise)
            assert selection is not None
            best = min(selection.costs.values())
            assert all(selection.costs[s] / best - 1 < 0.01 for s in selection.tied)
            selections.append(selection)
        usual = Counter(selection.winner for selection in selections).most_common(1)[0][0]
        undeclared += sum(usual != each.winner and usual not in each.tied for each in selections)
    assert undeclared <= 0.005 * 500 * 20


def test_twenty_selections_where_power_limits() -> None:
    """Eight schedules whose clocks are chance: equal ones are never reported apart by a percent."""
    clock, cycles = 0.0083 / math.sqrt(2), 0.0014 / math.sqrt(2)  # as two that are equal were seen to differ
    margins = {"time": SIGMAS * math.sqrt(2) * clock, "cycles": SIGMAS * math.sqrt(2) * cycles}
    noise = Noise({"final": {"power": margins}})
    rng = random.Random(0)
    schedules = [replace(FIRST, swizzle=2**i, raster=raster) for i in range(4) for raster in "mn"]
    undeclared = apart = 0
    for _ in range(100):
        selections = []
        for _ in range(20):
            measures = []
            for s in schedules:
                work = rng.gauss(1.0, cycles)
                raw = {"power_limited": True}
                measures.append(final(s, work * rng.gauss(1.0, clock), work, raw=raw))
            selection = select_final(measures, H200, noise)
            assert selection is not None
            selections.append(selection)
        usual = Counter(selection.winner for selection in selections).most_common(1)[0][0]
        undeclared += sum(usual != each.winner and usual not in each.tied for each in selections)
        apart += sum(max(each.costs.values()) / min(each.costs.values()) > 1.01 for each in selections)
    assert undeclared <= 0.005 * 2000
    assert apart <= 0.001 * 2000


def test_twenty_selections_of_kernels_that_depend_on_what_ran_before() -> None:
    """Three modes of one schedule lie 5 % apart, as seen where weights are streamed; rounds draw them by chance. Its
    interval over the rounds knows it; the margin, measured on a schedule without modes, does not."""
    noise = Noise({"final": {"memory": {"time": 0.004, "cycles": 0.004}}})
    problem, modes, rng = Problem(16, 28672, 4096), (0.97, 1.0, 1.03), random.Random(0)
    undeclared = {True: 0, False: 0}
    for known in undeclared:
        for _ in range(100):
            selections = []
            for _ in range(20):
                measures = []
                for schedule, means in ((FIRST, modes), (SECOND, (1.002,)), (THIRD, (1.03,))):
                    rounds = [57.0 * rng.choice(means) * rng.gauss(1.0, 0.001) for _ in range(17)]
                    us = estimate(rounds)
                    raw = {"ci95": {"median_us": [us.low, us.high]}} if known else {}
                    made = measured(problem, schedule, us.median, 57.0 / us.median, policy="final-1", raw=raw)
                    measures.append(made)
                selection = select_final(measures, H200, noise)
                assert selection is not None
                assert selection.winner != THIRD
                selections.append(selection)
            usual = Counter(selection.winner for selection in selections).most_common(1)[0][0]
            undeclared[known] += sum(usual != each.winner and usual not in each.tied for each in selections)
    assert undeclared[True] <= 0.005 * 2000 < 0.05 * 2000 < undeclared[False]


def test_intervals_over_rounds_are_of_times_alone() -> None:
    raw = {"ci95": {"median_us": [90.0, 110.0]}, "power_limited": True}
    noise = Noise({"final": {"power": {"time": 0.02, "cycles": 0.002}}})
    measures = [final(FIRST, 1.0, 1.0, raw=raw), final(SECOND, 1.0, 0.99, raw=raw)]
    selection = select_final(measures, H200, noise)
    assert selection is not None
    assert (selection.winner, selection.tied) == (FIRST, ()), "of cycles none is known"
    assert set(cost_intervals(measures[:1], {FIRST: 1.0}, "ratio_to_ref")) == {FIRST}
    assert cost_intervals(measures[:1], {FIRST: 1.0}, "ratio_energy") == {}
    # Of several finals the median counts, and not the widest.
    wide = [final(FIRST, 1.0, raw={"ci95": {"median_us": [100 - by, 100 + by]}}) for by in (1.0, 2.0, 30.0)]
    assert cost_intervals(wide, {FIRST: 1.0}, "ratio_to_ref")[FIRST] == pytest.approx((0.98, 1.02))


def test_one_interval_alone_makes_a_tie() -> None:
    costs = {FIRST: 1.0, SECOND: 1.02}
    assert select(costs, 0.004, incumbent=SECOND).winner == FIRST
    assert select(costs, 0.004, incumbent=SECOND, intervals={FIRST: (0.97, 1.05)}).winner == SECOND
    assert select(costs, 0.004, incumbent=SECOND, intervals={SECOND: (0.98, 1.06)}).winner == SECOND
    assert select(costs, 0.004, incumbent=SECOND, intervals={SECOND: (1.01, 1.06)}).winner == FIRST


def test_an_interval_that_nobody_can_read_is_none() -> None:
    odd = ([True, 200.0], [1, 10**400], [101.0, 102.0], [102.0, 99.0], [-1.0, 200.0], [math.nan, 200.0])
    for ends in (None, 7, [1.0], ["a", "b"], [1.0, None], {"low": 1.0}, *odd):
        assert final(FIRST, 1.0, raw={"ci95": {"median_us": ends}}).interval is None
    assert final(FIRST, 1.0, raw={"ci95": []}).interval is None
    assert final(FIRST, 1.0, raw={"ci95": {"median_us": [99.0, 102.0]}}).interval == pytest.approx((0.99, 1.02))


def test_a_difference_beyond_the_margin_wins_and_is_no_tie() -> None:
    clear = select({FIRST: 1.0, SECOND: 1.006}, 0.005, incumbent=SECOND)
    assert (clear.winner, clear.tied) == (FIRST, ())
    close = {FIRST: 1.004, SECOND: 1.0, THIRD: 1.006}
    assert (select(close, 0.005).winner, select(close, 0.005).tied) == (SECOND, (FIRST,))
    assert (select(close, 0.005, incumbent=FIRST).winner, select(close, 0.005, incumbent=FIRST).tied) == (
        FIRST,
        (SECOND,),
    )
    assert select(close, 0.005, incumbent=THIRD).winner == SECOND
    equal = select({FIRST: 1.0, SECOND: 1.0}, 0.005)
    assert equal.winner == min((FIRST, SECOND), key=lambda s: s.name)


def test_cycles_decide_where_power_limits_among_those_that_are_not_clearly_slower() -> None:
    def limited(schedule: Any, ratio: float, cycles: float) -> Measure:
        return final(schedule, ratio, cycles, raw={"power_limited": True})

    noise = Noise({"final": {"power": {"time": 0.02, "cycles": 0.002}}})
    measures = [limited(FIRST, 1.01, 1.0), limited(SECOND, 1.0, 1.003), limited(THIRD, 0.96, 1.02)]
    selection = select_final(measures, H200, noise)
    assert selection is not None
    assert (selection.winner, selection.tied) == (SECOND, ())
    ranked = sorted(selection.costs, key=selection.costs.__getitem__)
    assert ranked == [SECOND, FIRST, THIRD], "the third is slower by more than chance, and counts"
    assert selection.costs[THIRD] / selection.costs[SECOND] == pytest.approx(1.01 / 0.96), "by its time"


@pytest.mark.parametrize(("own", "chance", "least", "most"), [(0.01, 0.0, 0.99, 1.0), (0.0, 0.01, -0.3, 0.3)])
def test_clocks_that_are_the_schedules_own_come_back(own: float, chance: float, least: float, most: float) -> None:
    rng = random.Random(1)
    finals = []
    for race in range(12):
        for schedule, clock in ((FIRST, 0.0), (SECOND, own), (THIRD, -own)):
            seen = math.exp(clock + rng.gauss(0, chance) if chance else clock)
            raw = {"power_limited": True, "ref_us": 100.0 + race}
            finals.append(final(schedule, seen, 1.0, raw=raw))
    odd = final(FIRST, 1.0, 1.0, raw={"power_limited": True, "ref_us": [], "gpu": {}})
    repeats = clock_repeats([*finals, odd])
    assert repeats is not None and repeats.pairs == 3 * 66
    assert least <= repeats.correlation <= most
    assert clock_repeats(finals[:3]) is None, "nobody met twice"


def test_an_incumbent_is_never_replaced_by_one_that_is_slower_or_as_fast() -> None:
    measures = [final(FIRST, 1.0), final(SECOND, 1.004), final(THIRD, 0.9)]
    for incumbent, winner in ((FIRST, FIRST), (SECOND, SECOND), (THIRD, SECOND)):
        selection = select_final(measures, H200, Noise(), incumbent=incumbent)
        assert selection is not None
        assert selection.winner == winner or selection.tied


def test_a_table_declares_its_ties(tmp_path: Path) -> None:
    measures = [final(FIRST, 1.1), final(SECOND, 1.099), final(THIRD, 0.9)]
    table = build_table(contents(measures), H200)
    (entry,) = table.entries
    assert (entry.schedule, entry.tied) == (FIRST, (SECOND.name,))
    path = tmp_path / "table.json"
    path.write_text(table.dumps())
    assert load_table(path).entries == table.entries
    sharp = Noise({"final": {"latency": {"time": 0.0001}}})
    assert build_table(contents(measures), H200, noise=sharp).entries[0].tied == ()


# ---- the noise model


def test_margins_are_those_of_the_policy_and_of_the_kind_of_problem() -> None:
    noise = Noise({"final-brief": {"power": {"time": 0.02, "cycles": 0.003}}, "final": {"power": {"time": 0.01}}})
    assert noise.margins(["final-brief-1a2b"], "power") == Margins(0.02, 0.003)
    assert noise.margins(["final-1", "final-brief-1a2b"], "power").cost == 0.02, "the widest"
    assert noise.margins(["energy:final-1"], "power", "energy").cost == UNMEASURED["energy"]
    assert noise.margins(["final-short-1"], "power") == Margins(0.02, 0.003), "the coarsest of its family"
    assert noise.margins(["race-1"], "power").cost == UNMEASURED["time"]
    assert noise.margins(["screen-1"], "memory") == Margins(UNMEASURED["time"], UNMEASURED["cycles"])
    counted = Noise({"final-brief": {"power": {"time": 0.02, "energy": 0.004}}})
    assert counted.margins(["energy:final-1"], "power", "energy").cost == 0.004, "all finals count alike"
    edp = noise.margins(["energy:final-1"], "power", "edp").cost
    assert edp == pytest.approx(0.01 + UNMEASURED["energy"])


def test_what_limits_a_problem_is_told_apart() -> None:
    assert bottleneck(P, H200, 200.0, True) == "power"
    assert bottleneck(Problem(16, 57344, 8192), H200, 220.0, False) == "memory"
    assert bottleneck(Problem(16, 1280, 8192), H200, 11.0, False) == "latency"


def test_scatter_tells_rounds_from_calls() -> None:
    """Copies in the same rounds agree to 0.1 %, and every call has an offset of its own of 1 %."""
    rng = random.Random(0)
    calls = [[math.exp(offset + rng.gauss(0, 0.001)) for _ in range(4)] for offset in (-0.01, 0.0, 0.01, 0.0, 0.01)]
    spread = scatter(calls)
    assert spread["within"] == pytest.approx(0.001 * math.sqrt(2), rel=0.3)
    assert spread["between"] > 5 * spread["within"]
    assert spread["within"] <= spread["largest"] < 0.01
    assert spread["pairs"] == 5 * 6


def test_the_noisiest_problem_of_a_kind_counts(tmp_path: Path) -> None:
    def row(policy: str, kind: str, within: float, name: str = "a", pairs: int = 12) -> dict[str, Any]:
        scatter = {"time": {"within": within, "pairs": pairs}}
        return {"policy": f"{policy}-1", "policy_name": policy, "bottleneck": kind, "name": name, "scatter": scatter}

    noisiest = [row("final", "power", 0.001), row("final", "power", 0.002, "b"), row("screen", "memory", 0.003)]
    found = resolvable(noisiest)
    assert found == {"final": {"power": {"time": 0.006}}, "screen": {"memory": {"time": 0.009}}}
    # One problem on two cards: three quarters of the pairs scatter by 0.001, a quarter by 0.003.
    pooled = resolvable([row("final", "power", 0.001, pairs=36), row("final", "power", 0.003, pairs=12)])
    assert pooled == {"final": {"power": {"time": round(0.003 * math.sqrt(3), 5)}}}
    path = tmp_path / "noise.json"
    path.write_text(json.dumps({"v": 1, "resolvable": found}))
    assert read_noise(path).margin("final-123", "power", "time") == 0.006
    assert "| final | 0.60 % |" in noise_table(read_noise(path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"v": 2, "resolvable": {}}',
        '{"v": 1, "resolvable": {"a": 7}}',
        f'{{"v": 1, "resolvable": {{"final": {{"power": {{"time": {10**400}}}}}}}}}',
    ],
)
def test_what_is_no_noise_document_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "noise.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="no document of `tileseek noise`"):
        read_noise(path)
    with pytest.raises(BadInput, match="cannot read"):
        read_noise(tmp_path / "absent.json")
    spread = {"within": 0.001, "between": 0.001, "largest": 0.002, "pairs": 12}
    row = {"policy": "a-1", "policy_name": "a", "bottleneck": "b", "name": "c", "scatter": {"time": spread}}
    path.write_text(f'{{"v": 1, "resolvable": {{}}, "date": "d", "rows": {json.dumps([row])}}}')
    assert read_rows(path) == [{"date": "d", **row}]
    changes: list[dict[str, Any]] = [
        {"pairs": 0},
        {"pairs": True},
        {"pairs": 10**400},
        {"within": math.nan},
        {"within": 0.5},
    ]
    changes += [{"between": "x"}, {"largest": math.inf}]
    bad = [row | {"scatter": {"time": spread | change}} for change in changes]
    for rows in ("7", '[{"policy_name": "a"}]', *(json.dumps([r]) for r in [*bad, row | {"scatter": {"joy": spread}}])):
        path.write_text(f'{{"v": 1, "resolvable": {{}}, "date": "d", "rows": {rows}}}')
        with pytest.raises(BadInput, match="no document of `tileseek noise`"):
            read_rows(path)


class TwinGpu:
    """A measurer on which equal schedules differ by chance alone."""

    device = H200

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def measure(self, problem: Problem, candidates: Sequence[Candidate], policy: Any) -> list[Result]:
        def result(candidate: Candidate) -> Result:
            ratio = math.exp(self.rng.gauss(0, SIGMA))
            return Result(
                candidate.schedule, "correct", median_us=200.0, ratio_to_ref=ratio, ratio_cycles=1.0, power_limited=True
            )

        return [result(candidate) for candidate in candidates]


def test_the_noise_that_is_planted_is_found() -> None:
    pytest.importorskip("optuna")
    from tileseek.search.repeat import noise_row

    row = noise_row(TwinGpu(), NamedProblem("p", P), Candidate(FIRST, b"", "k", 0), FINAL, copies=4, calls=50)  # type: ignore[arg-type]
    assert (row["bottleneck"], row["policy"], row["policy_name"]) == ("power", FINAL.key, "final")
    assert row["scatter"]["time"]["within"] == pytest.approx(math.sqrt(2) * SIGMA, rel=0.15)
    assert row["scatter"]["cycles"]["within"] == 0.0
    assert "energy" not in row["scatter"], "not measured"


# ---- energy


class SteppingCounter:
    """A counter of `watts` that moves every `period` seconds; looking takes a moment."""

    def __init__(self, watts: float, period: float) -> None:
        self.watts, self.period, self.now = watts, period, 0.0123

    def energy_mj(self) -> int:
        return round(1000 * self.watts * (self.now // self.period) * self.period)

    def work(self) -> None:
        self.now += 0.0005


@pytest.mark.parametrize("period", [0.001, 0.02, 0.1])
def test_power_is_right_however_slowly_the_counter_moves(period: float) -> None:
    counter = SteppingCounter(650.0, period)
    began = counter.now
    power = mean_power_w(counter, 0.1, counter.work, lambda: counter.now)
    assert power == pytest.approx(650.0, rel=0.01)
    assert counter.now - began <= 0.1 + 2 * period + 0.01


def test_a_counter_that_stands_still_is_reported() -> None:
    counter = SteppingCounter(650.0, 1e9)
    with pytest.raises(NvmlError, match="stands still"):
        mean_power_w(counter, 0.1, counter.work, lambda: counter.now)


def test_energy_is_compared_in_the_same_pass() -> None:
    samples = [FakeSample(100.0)] * 5
    field = Field(P, H200, {"cublas": samples}, 2.0, {"cublas": (60.0, 66.0, 63.0)})
    result = score(field, Candidate(FIRST, b"", "k", 168), 0, {}, [FakeSample(120.0)] * 5, (50.0, 55.0, 52.5))
    assert result.energy_mj == 52.5
    assert result.ratio_energy == pytest.approx(1.2)
    assert score(field, Candidate(FIRST, b"", "k", 168), 0, {}, samples).energy_mj == 0.0


def test_objectives_never_mix() -> None:
    assert len({SCREEN.tuning_for(objective).key for objective in OBJECTIVES}) == len(OBJECTIVES)
    assert SCREEN.tuning_for("time") is SCREEN
    energy = FINAL.tuning_for("energy")
    assert energy.key.startswith("energy:final-")
    assert energy.energy_ms > 0
    assert replace(FINAL, check_repeats=7).key == FINAL.key != FINAL.with_energy().key
    frugal = {"raw": {"ratio_energy": 1.5, "energy_mj": 40.0}}
    wasteful = {"raw": {"ratio_energy": 1.0, "energy_mj": 60.0}}
    measures = [
        measured(P, FIRST, 10.0, 1.2, policy=energy.key, **wasteful),
        measured(P, SECOND, 11.0, 1.1, policy=energy.key, **frugal),
        measured(P, THIRD, 11.5, 1.05, policy="final-1"),
    ]
    tables = {objective: build_table(contents(measures), H200, objective=objective) for objective in OBJECTIVES}
    assert tables["time"].entries[0].schedule == THIRD, "what was tuned for energy is no final of time"
    assert (tables["energy"].entries[0].schedule, tables["energy"].entries[0].energy_mj) == (SECOND, 40.0)
    assert tables["edp"].entries == ()
    assert '"objective": "energy"' in tables["energy"].dumps()


# ---- conditions


def test_samples_of_a_card_that_is_braked_do_not_count() -> None:
    calm = FakeSample(100.0)
    for brake in (0x08, 0x20, 0x40, 0x80):
        assert BRAKES & brake
        assert steady([calm, FakeSample(130.0, throttle=brake | 4), calm]) == [calm, None, calm]
    capped = FakeSample(100.0, mhz=1350.0, throttle=4)
    assert steady([capped] * 3) == [capped] * 3, "the power cap is what large products always meet"


def test_samples_at_another_clock_do_not_count_where_power_does_not_limit() -> None:
    calm, slow = FakeSample(100.0, mhz=1850.0), FakeSample(120.0, mhz=1500.0)
    assert steady([calm, slow, None, calm]) == [calm, None, None, calm]
    hunting = [FakeSample(200.0, mhz=mhz) for mhz in (1250.0, 1350.0, 1420.0)]
    assert steady(hunting) == hunting


def test_a_card_that_is_hot_all_the_time_is_measured_as_it_is() -> None:
    hot, calm = FakeSample(100.0, throttle=0x20), FakeSample(90.0)
    assert steady([hot, hot, calm]) == [hot, hot, calm]


def test_what_is_discarded_is_counted() -> None:
    calm, braked = FakeSample(100.0), FakeSample(200.0, throttle=0x40)
    field = Field(P, H200, {"cublas": [calm, calm, braked, calm, calm]}, 2.0)
    result = score(field, Candidate(FIRST, b"", "k", 168), 0, {}, [calm, braked, calm, calm, calm])
    assert result.discarded == 1
    assert result.times_us == (100.0,) * 4
    assert (result.ratio_to_ref, result.ref_us) == (1.0, 100.0)


def test_both_regimes_are_there() -> None:
    assert (FINAL.regime, BURST_FINAL.regime) == ("sustained", "burst")


def test_a_kernel_wrong_once_in_a_hundred_launches_escapes_the_claims_in_one_case_of_twenty() -> None:
    for policy in (FINAL, BURST_FINAL):
        assert (1 - 0.01) ** policy.check_repeats < 0.05


# ---- the command


class Card(TwinGpu):
    """What `Measurer` is to the command."""

    env: ClassVar = {"gpu": "NVIDIA H200"}
    env_key, uuid = "e", "GPU-0"

    def __init__(self, gpu: int) -> None:
        super().__init__()

    def __enter__(self) -> Card:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(
        self, problem: Problem, candidates: Sequence[Candidate], policy: Any, on_result: Any = None
    ) -> list[Result]:
        """Distinct kernels differ by whole percents, which nothing hides."""
        results = [
            replace(
                result,
                ratio_to_ref=result.ratio_to_ref * (1 + int(hashlib.sha256(c.cubin).hexdigest()[:2], 16) / 100),
                times_us=(200.0,),
            )
            for c, result in zip(candidates, super().measure(problem, candidates, policy), strict=True)
        ]
        for result in results if on_result else ():
            on_result(result)
        return results


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands measure on a simulated card."""
    pytest.importorskip("cuda.bindings.nvrtc")
    pytest.importorskip("optuna")
    from tileseek.measure.gpus import Gpu

    monkeypatch.setattr("tileseek.measure.supervisor.Measurer", Card)
    for name in ("noise", "recheck"):
        monkeypatch.setattr(f"tileseek.commands.{name}.hopper", lambda gpu: Gpu(gpu, "", "NVIDIA H200", "9.0", 132, 1))
        monkeypatch.setattr(f"tileseek.commands.{name}.require", lambda *_: None)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    path.write_text(build_table(contents([final(FIRST, 1.1), final(SECOND, 1.0)]), H200).dumps())
    return path


def test_recheck_compares_a_table_with_today(
    card: None, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tileseek.search.shootout import BRIEF_FINAL

    from tileseek.commands import recheck

    out = tmp_path / "recheck.json"
    (tmp_path / "suite.csv").write_text("name,layout,dtype,m,n,k\np,nt,bf16,4096,4096,4096\nq,nt,bf16,64,64,64\n")
    recheck.command([str(tmp_path / "suite.csv")], table=table, out=out)
    document = json.loads(out.read_text())
    (row,) = document["rows"]
    assert row["drift"] == pytest.approx(200.0 / row["table_us"] - 1)
    ours = row["best_today"] == row["schedule_name"]
    assert (row["regret"] < 0.01) == ours, "kernels differ by whole percents"
    assert document["summary"] == {"problems": 1, "times_kept": 0, "choices_kept": int(row["regret"] <= 0.02)}
    assert row["policy"] == BRIEF_FINAL.key
    said = capsys.readouterr()
    assert "of 1 problems 0 have times within 3%" in said.out
    assert "1 of 2 problems are not in the table" in said.err
    with pytest.raises(BadInput, match="none of 1 problems is in the table"):
        recheck.command(["64", "64", "64"], table=table)


def test_recheck_measures_as_the_table_was_measured(card: None, table: Path, tmp_path: Path) -> None:
    from tileseek.commands import recheck

    known = json.loads(table.read_text())
    known["entries"][0]["policy"] = FINAL.key
    table.write_text(json.dumps(known))
    journal = tmp_path / "journal.jsonl"
    recheck.command(["4096", "4096", "4096"], table=table, journal=journal, out=tmp_path / "recheck.json")
    (row,) = json.loads((tmp_path / "recheck.json").read_text())["rows"]
    assert row["policy"] == FINAL.key
    kept = read_journal(journal)
    assert {(m.schedule, m.policy, m.env) for m in kept.measures} == {(s, FINAL.key, "e") for s in (FIRST, SECOND)}
    assert kept.envs["e"]["gpu"] == "NVIDIA H200"
    assert row["us"] in {m.median_us for m in kept.measures}


def test_the_command_writes_a_document_that_reads_back(
    card: None, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tileseek.commands import noise as command

    monkeypatch.setattr(command, "ENTRANTS", 4)
    out = tmp_path / "noise.json"
    command.command(
        ["4096", "4096", "4096"], policy=["screen", "final"], copies=3, calls=8, selections=20, table=table, out=out
    )
    noise = read_noise(out)
    assert noise.margin("final-1", "power", "time") == pytest.approx(SIGMAS * math.sqrt(2) * SIGMA, rel=0.4)
    assert set(noise.resolvable) == {"screen", "final"}
    (selected,) = json.loads(out.read_text())["selections"]
    assert selected["entrants"][:2] == [FIRST.name, replace(FIRST, ctas=132).name], "the best under two names"
    assert len(selected["entrants"]) == 4
    assert selected["selections"] == sum(selected["winners"].values()) == 20
    assert selected["undeclared"] <= 2
    assert "20 selections from 4 schedules" in capsys.readouterr().out
    first = json.loads(out.read_text())
    command.command(["4096", "4096", "4096"], policy=["final"], calls=1, earlier=[out], table=table, out=out)
    second = json.loads(out.read_text())
    assert [row["date"] for row in second["rows"][:2]] == [first["date"]] * 2 and len(second["rows"]) == 3
    assert second["resolvable"]["screen"] == first["resolvable"]["screen"]
    assert second["resolvable"]["final"] != first["resolvable"]["final"]
    older = tmp_path / "older.json"
    older.write_text(json.dumps(first).replace(FINAL.key, "final-older"))
    capsys.readouterr()
    command.command(["4096", "4096", "4096"], policy=["final"], calls=1, earlier=[older], table=table, out=out)
    assert "1 of 2 earlier rows left out: final-older had other rules" in " ".join(capsys.readouterr().err.split())
    kept = [(row["policy"], row.get("date")) for row in json.loads(out.read_text())["rows"]]
    assert kept == [(SCREEN.key, first["date"]), (FINAL.key, None)], "the rules of finals have changed since"
    for words, message in (
        ({"policy": ["quick"]}, "policy is 'quick'"),
        ({"earlier": [tmp_path / "none.json"]}, "cannot read"),
        ({"copies": 1}, "--copies is 1"),
        ({"policy": ["screen"], "energy": True}, "valid is one of finals"),
    ):
        with pytest.raises(BadInput, match=message):
            command.command(["64", "64", "64"], **words)


def test_selections_that_are_interrupted_count(
    card: None, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tileseek.commands import noise as command

    calls = itertools.count(1)

    class Interrupted(Card):
        def measure(
            self, problem: Problem, candidates: Sequence[Candidate], policy: Any, on_result: Any = None
        ) -> list[Result]:
            if next(calls) > 9:
                raise KeyboardInterrupt
            return super().measure(problem, candidates, policy, on_result)

    monkeypatch.setattr("tileseek.measure.supervisor.Measurer", Interrupted)
    monkeypatch.setattr(command, "ENTRANTS", 4)
    out = tmp_path / "noise.json"
    with pytest.raises(typer.Exit):
        command.command(
            ["4096", "4096", "4096"], policy=["final"], copies=2, calls=1, selections=20, table=table, out=out
        )
    (selected,) = json.loads(out.read_text())["selections"]
    assert 0 < selected["selections"] == sum(selected["winners"].values()) < 5
