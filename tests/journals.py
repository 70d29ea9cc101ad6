"""Journals made for tests: the same candidates measured by a clock that is a formula."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tileseek.heuristics.journal import JournalContents, Measure
from tileseek.space import Problem, Schedule

ENV = {"gpu": "NVIDIA H200", "generator": "1", "compiler": "nvrtc 13.0.88"}

FIRST = Schedule("coop", 2, 128, 256, 64, 3, cluster_m=2, swizzle=8, producer_regs=40, consumer_regs=232)
SECOND = Schedule("pp", 2, 64, 256, 64, 4, producer_regs=40, consumer_regs=232)
THIRD = Schedule("coop", 2, 128, 128, 64, 4)
FOURTH = Schedule("coop", 1, 64, 128, 64, 6)
FIFTH = Schedule("coop", 2, 128, 192, 64, 4, producer_regs=24, consumer_regs=240, store="direct")


def measured(
    problem: Problem, schedule: Schedule, time_us: float, ratio: float | None = None, **changes: Any
) -> Measure:
    """A measure with a symmetric spread of one percent."""
    raw = {"check": {"norm": 0.001}, **changes.pop("raw", {})}
    fields: dict[str, Any] = {
        "status": "correct",
        "median_us": time_us,
        "times_us": (0.99 * time_us, time_us, 1.01 * time_us),
        "ratio_to_ref": ratio,
        "ratio_to_best": None,
        "ratio_cycles": None,
        "env": "e1",
        "policy": "screen-1",
        **changes,
    }
    return Measure(problem=problem, schedule=schedule, raw=raw, **fields)


def contents(measures: Iterable[Measure], **envs: Any) -> JournalContents:
    """Contents with the usual environment `e1` and others by name."""
    return JournalContents(measures=list(measures), envs={"e1": ENV, **envs})
