"""Pairs of schedules measured in the same rounds: what one choice is worth, all else equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..heuristics.journal import Journal, Measure
from ..measure.policy import FINAL, Policy
from ..measure.stats import estimate, paired
from ..measure.timing import LONG_SLOT_MS
from ..space import Problem, Schedule
from .roadmap import Pair
from .runner import Runner

ABLATION = replace(FINAL, name="ablation", rounds=15, race_rounds=3, finalists=1, check_seeds=1)
"""Slots as when claiming; fewer rounds, for two of ours differ by less than one of ours and one of theirs."""

OnRow = Callable[[dict[str, Any]], None]


def measure_pairs(
    pairs: Sequence[Pair], runner: Runner, journal: Journal, on_row: OnRow, policy: Policy = ABLATION
) -> None:
    """Measure the pairs, those of one problem in one race; `on_row` gets the row of each as soon as its race is over.

    Everything measured goes to `journal`.

    Raises:
        BadInput: a problem cannot be measured.
        MeasureError: measuring fails for a reason that is not a schedule's.
    """
    races: dict[Problem, list[Pair]] = {}
    for pair in pairs:
        races.setdefault(pair.problem, []).append(pair)
    for problem, own in races.items():
        runner.prepare(problem, _schedules(own))
    journal.append({"kind": "env", "env": runner.env_key, **runner.env})
    for problem, own in races.items():
        measures = runner.measure(problem, _schedules(own), policy, lambda measure: journal.append(measure.raw))
        found = {measure.schedule: measure for measure in measures}
        for pair in own:
            on_row(pair_row(pair, found[pair.on], found[pair.off]))


def pair_row(pair: Pair, on: Measure, off: Measure) -> dict[str, Any]:
    """One object of `pairs` in the road map's document. Ratios are off over on: above 1 the choice helps.

    `ratio` and `ratio_cycles` are medians over the rounds in which both ran, with their 95 % intervals; null unless
    both are correct. `energy_mj` is of one call, null where slots are too short for a power of their own.
    """
    times = _by_round(on, off, lambda measure: _list(measure, "times_us"))
    cycles = _by_round(on, off, _cycles)
    return {
        "row": pair.row.id,
        "choice": pair.row.choice,
        "why": pair.row.why,
        "problem_name": pair.problem_name,
        "problem": pair.problem.to_json(),
        "provenance": pair.provenance,
        "adjusted": pair.adjusted,
        "on": {"changes": dict(pair.on_changes), **_side(on)},
        "off": {"changes": dict(pair.row.off), **_side(off)},
        "power_limited": on.raw.get("power_limited"),
        "slot_ms": on.raw.get("slot_ms"),
        "rounds": min(len(on.times_us), len(off.times_us)),
        "ratio": times and times["median"],
        "ratio_cycles": cycles and cycles["median"],
        "ci95": {"ratio": times and times["interval"], "ratio_cycles": cycles and cycles["interval"]},
        "env": on.env,
        "policy": on.policy,
        "t": on.raw.get("t"),
    }


def _schedules(pairs: Iterable[Pair]) -> list[Schedule]:
    return list(dict.fromkeys(schedule for pair in pairs for schedule in (pair.on, pair.off)))


def _side(measure: Measure) -> dict[str, Any]:
    raw = measure.raw
    correct = measure.status == "correct"
    own_power = correct and raw.get("slot_ms", 0.0) >= LONG_SLOT_MS
    return {
        "schedule": measure.schedule.name,
        "status": measure.status,
        "reason": raw.get("reason", ""),
        "us": measure.median_us,
        "mhz": raw.get("clock_mhz"),
        "power_w": raw.get("power_w") if own_power else None,
        "energy_mj": raw["power_w"] * measure.median_us / 1000 if own_power and measure.median_us else None,
        "vs_cublaslt_best": measure.ratio_to_best,
    }


def _list(measure: Measure, name: str) -> list[float]:
    return list(measure.raw.get(name) or ())


def _cycles(measure: Measure) -> list[float]:
    times, clocks = _list(measure, "times_us"), _list(measure, "clocks_mhz")
    return [us * mhz for us, mhz in zip(times, clocks, strict=False)]


def _by_round(on: Measure, off: Measure, values: Callable[[Measure], Sequence[float]]) -> Mapping[str, Any] | None:
    """off / on; None where either is wrong, or sat out a round so that rounds do not match."""
    if not on.status == off.status == "correct" or len(values(on)) != len(values(off)):
        return None
    ratios = paired(values(off), values(on))
    if not ratios:
        return None
    result = estimate(ratios)
    return {"median": result.median, "interval": [result.low, result.high]}
