"""Pairs of schedules measured in the same rounds: what one choice is worth, all else equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..heuristics.journal import Journal, Measure
from ..measure.policy import ENERGY_MS, FINAL, Policy
from ..measure.results import CORRECT
from ..measure.stats import Estimate, estimate, paired
from ..space import Problem, Schedule
from .roadmap import Pair
from .runner import Runner

ABLATION = replace(
    FINAL,
    name="ablation",
    rounds=16,
    race_rounds=3,
    finalists=1,
    check_seeds=1,
    check_repeats=10,
    energy_ms=ENERGY_MS,
)
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
    both are correct and ran in one race. `ratio_energy` compares energies of a call.
    """
    times = _by_round(on, off, _times)
    cycles = _by_round(on, off, _cycles)
    energies = [side.raw.get("energy_mj") or 0.0 for side in (off, on)]
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
        "rounds": len(_times(on).keys() & _times(off).keys()),
        "ratio": times and times.median,
        "ratio_cycles": cycles and cycles.median,
        "ratio_energy": energies[0] / energies[1] if times and all(energies) else None,
        "ci95": {
            "ratio": times and [times.low, times.high],
            "ratio_cycles": cycles and [cycles.low, cycles.high],
        },
        "env": on.env,
        "policy": on.policy,
        "t": on.raw.get("t"),
    }


def _schedules(pairs: Iterable[Pair]) -> list[Schedule]:
    return list(dict.fromkeys(schedule for pair in pairs for schedule in (pair.on, pair.off)))


def _side(measure: Measure) -> dict[str, Any]:
    raw = measure.raw
    return {
        "schedule": measure.schedule.name,
        "status": measure.status,
        "reason": raw.get("reason", ""),
        "us": measure.median_us,
        "mhz": raw.get("clock_mhz"),
        "energy_mj": raw.get("energy_mj") or None,
        "vs_cublaslt_best": measure.ratio_to_best,
    }


def _times(measure: Measure) -> dict[int, float]:
    """Microseconds by round."""
    return dict(zip(measure.raw.get("rounds", ()), measure.times_us, strict=False))


def _cycles(measure: Measure) -> dict[int, float]:
    """Cycles by round."""
    clocks = measure.raw.get("clocks_mhz", ())
    return {at: us * mhz for (at, us), mhz in zip(_times(measure).items(), clocks, strict=False)}


def _by_round(on: Measure, off: Measure, values: Callable[[Measure], dict[int, float]]) -> Estimate | None:
    """off / on; None where either is not correct, or where a crash had them run in two races, which two medians of the
    same reference show."""
    if not on.status == off.status == CORRECT or on.raw.get("ref_us") != off.raw.get("ref_us"):
        return None
    own, other = values(on), values(off)
    common = sorted(own.keys() & other.keys())
    ratios = paired([other[at] for at in common], [own[at] for at in common])
    return estimate(ratios) if ratios else None
