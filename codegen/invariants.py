"""What every generated kernel does, whatever its schedule: the rows of the road map that are no choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .audit import INSTRUCTIONS_PER_WGMMA, LOOP_INSTRUCTIONS, Audit, KLoop

Facts = dict[str, Any]


def _nothing(audits: Sequence[Audit]) -> Facts:
    """For what is checked without compiling."""
    del audits
    return {}


@dataclass(frozen=True, slots=True)
class Invariant:
    """A row of the road map, what proves it, and its numbers over a sample of audited kernels."""

    id: str
    wish: str
    check: str
    facts: Callable[[Sequence[Audit]], Facts] = _nothing


def _loops(audits: Sequence[Audit]) -> list[KLoop]:
    return [loop for audit in audits for loop in audit.loops]


def _most(audits: Sequence[Audit], *names: str) -> Facts:
    """The largest of each fact."""
    return {f"most {name}": max((getattr(audit, name) for audit in audits), default=0) for name in names}


def _in_loops(audits: Sequence[Audit], *names: str) -> Facts:
    """The range of each fact of the K loop."""
    loops = _loops(audits)
    ranges = {name: [getattr(loop, name) for loop in loops] for name in names}
    return {name: f"{min(values)} to {max(values)}" for name, values in ranges.items() if values}


def _instructions(audits: Sequence[Audit]) -> Facts:
    loops = _loops(audits)
    if not loops:
        return {}
    each = [loop.instructions / loop.hgmma for loop in loops]
    beyond = [loop.instructions - INSTRUCTIONS_PER_WGMMA * loop.hgmma for loop in loops]
    four = [loop.instructions for loop in loops if loop.hgmma == 4]
    return {
        "instructions per wgmma, median": round(median(each), 2),
        "instructions per wgmma, most": round(max(each), 2),
        f"beyond {INSTRUCTIONS_PER_WGMMA} for each wgmma, most": max(beyond),
        "allowed": LOOP_INSTRUCTIONS,
        "loops of 4 wgmmas": f"{min(four)} to {max(four)} instructions" if four else "none",
    }


INVARIANTS: Sequence[Invariant] = (
    Invariant("K1", "uniform registers", "audit: no R2UR in the K loop", lambda a: _in_loops(a, "r2ur")),
    Invariant("K2", "simple indexing", "audit: a budget of instructions in the K loop", _instructions),
    Invariant(
        "K4",
        "one fence, one commit, one wait for each k-block",
        "audit: one of each in the K loop",
        lambda a: _in_loops(a, "arrive", "gsb0", "depbar", "membar", "cctl", "bar"),
    ),
    Invariant("P3", "one mapping of tiles", "test_space.py, test_walk.py: each tile once, host and kernel alike"),
    Invariant(
        "P4",
        "long-lived barriers",
        "audit: no mbarrier is initialised in a loop",
        lambda a: _most(a, "barrier_inits_in_loops"),
    ),
    Invariant("P5", "stage and phase run on", "test_pipeline.py: a model of the ring in every order of events"),
    Invariant(
        "R2",
        "no stack, no spills",
        "audit",
        lambda a: _most(a, "spill_bytes", "stack_bytes", "local"),
    ),
    Invariant(
        "E1",
        "one thread issues a TMA store",
        "audit: one store for each chunk, one elected thread for each kind of load",
        lambda a: {
            "kernels with another number of stores": sum(audit.stores != audit.expected_stores for audit in a),
            "of elections": sum(audit.elect != audit.expected_elections for audit in a),
        },
    ),
    Invariant("E2", "waits for a store just before stmatrix", "test_codegen.py: the order of the source"),
    Invariant("E5", "no bank conflicts in the epilogue", "test_swizzle.py: eight rows of a matrix fill all 32 banks"),
    Invariant("S1", "64-bit indexing", "test_space.py: limits; test_kernels_gpu.py: more than 2^31 elements"),
)
