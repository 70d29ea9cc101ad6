"""The audit: static facts of a compiled kernel, and the reasons they give to reject it.

A kernel that spills, whose wgmmas the compiler serialised, or whose K loop does more than it should computes the
right result slowly. The audit finds it without a GPU, so that no measuring time is spent on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..space import DTYPE_BYTES, GEMV, OUT_DTYPE_BYTES, PROMOTED, Problem, Schedule
from ..space.resources import (
    WGMMA_K_BYTES,
    boxes_of_a_piece,
    copied,
    piece_count,
    stores_per_piece,
    wgmma_groups,
)
from .sass import Loop, decode, in_wgmma_loops, k_loops

AUDIT_VERSION = "4"
"""Raised when the audit records other facts or rejects other kernels: part of the cache key."""

LOOP_INSTRUCTIONS = 32
INSTRUCTIONS_PER_WGMMA = 4
"""The K loop may take the first number of instructions plus the second for each wgmma. Generated kernels take at most
28 + 4 for each (32 to 42 with 4 wgmmas); a loop that builds descriptors anew took 62 with 4."""


@dataclass(frozen=True, slots=True)
class KLoop:
    """Instructions of one innermost loop with wgmmas."""

    instructions: int
    hgmma: int
    gsb0: int
    """wgmmas that end a group: one for each commit, unless the compiler serialised them."""
    r2ur: int
    """Moves from a register to a uniform register: something warp-uniform was not known to be."""
    arrive: int
    """wgmma.fence."""
    depbar: int
    """wgmma.wait_group."""
    syncs: int
    membar: int
    cctl: int
    bar: int
    local: int
    """Loads from and stores to local memory."""

    @property
    def budget(self) -> int:
        """The most instructions that the loop may take for its wgmmas."""
        return LOOP_INSTRUCTIONS + INSTRUCTIONS_PER_WGMMA * self.hgmma


@dataclass(frozen=True, slots=True)
class Audit:
    """Static facts of one kernel beside what its schedule asks for (`expected_*`)."""

    registers: int
    """Registers a thread at launch."""
    stack_bytes: int
    spill_bytes: int
    """Stores and loads together."""
    messages: tuple[str, ...]
    """Lines of the compiler that are more than statistics."""
    instructions: int
    loops: tuple[KLoop, ...]
    hgmma: int
    setmaxnreg: int
    local: int
    """Instructions on local memory."""
    elect: int
    loads: int
    """TMA loads, multicast ones included."""
    multicast_loads: int
    stores: int
    """TMA stores."""
    stmatrix: int
    """Stores of 8x8 blocks of 16-bit elements to shared memory."""
    barrier_inits_in_loops: int
    """mbarrier initialisations inside the loop over tiles or over K."""
    expected_wgmmas: int
    """wgmmas of one k-block of one consumer warpgroup."""
    expected_groups: int
    """Groups of wgmmas, each with its fence and wait, of one k-block."""
    expected_additions: int
    """fp32 additions of one k-block that promote sums."""
    expected_setmaxnreg: int
    expected_stores: int
    expected_stmatrix: bool
    expected_multicast: bool
    expected_elections: int

    @property
    def instructions_per_wgmma(self) -> float:
        """Instructions of the K loop for each wgmma; 0 when there is no such loop."""
        return max((loop.instructions / loop.hgmma for loop in self.loops), default=0.0)

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons to reject the kernel; empty when it is accepted."""
        return tuple(self._problems())

    def _problems(self) -> Iterator[str]:
        if self.spill_bytes:
            yield f"{self.spill_bytes} bytes of spills"
        if self.stack_bytes:
            yield f"{self.stack_bytes} bytes of stack"
        if self.local:
            yield f"{self.local} instructions on local memory"
        yield from self.messages
        if self.setmaxnreg != self.expected_setmaxnreg:
            yield f"{self.setmaxnreg} setmaxnreg instructions, not {self.expected_setmaxnreg}"
        if self.stores != self.expected_stores:
            yield f"{self.stores} TMA stores, not {self.expected_stores}"
        if bool(self.stmatrix) != self.expected_stmatrix:
            yield f"{self.stmatrix} stmatrix, {'some' if self.expected_stmatrix else 'none'} expected"
        if bool(self.multicast_loads) != self.expected_multicast:
            yield f"{self.multicast_loads} multicast loads, {'some' if self.expected_multicast else 'none'} expected"
        if self.elect != self.expected_elections:
            yield f"{self.elect} elections of a thread, not {self.expected_elections}"
        if self.barrier_inits_in_loops:
            yield f"{self.barrier_inits_in_loops} mbarriers initialised inside a loop"
        if self.expected_wgmmas and not self.loops:
            yield "no loop with wgmmas"
        for loop in self.loops:
            yield from self._loop_problems(loop)

    def _loop_problems(self, loop: KLoop) -> Iterator[str]:
        for count, valid, what in (
            (loop.hgmma, self.expected_wgmmas, "wgmmas"),
            (loop.gsb0, self.expected_groups, "groups of wgmmas"),
            (loop.arrive, self.expected_groups, "wgmma fences"),
            (loop.depbar, self.expected_groups, "wgmma waits"),
            (loop.r2ur, 0, "moves to uniform registers"),
            (loop.membar, 0, "memory fences"),
            (loop.cctl, 0, "cache invalidations"),
            (loop.bar, 0, "CTA barriers"),
        ):
            if count != valid:
                yield f"{count} {what} in the K loop, not {valid}"
        budget = loop.budget + self.expected_additions
        if loop.instructions > budget:
            yield f"{loop.instructions} instructions in the K loop for {loop.hgmma} wgmmas, over the budget of {budget}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every fact by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Audit:
        """The inverse of `to_json`.

        Raises:
            ValueError: a field is missing, unknown or of another type.
        """
        try:
            values = dict(obj)
            values["loops"] = tuple(KLoop(**_integers(KLoop, loop)) for loop in obj["loops"])
            values["messages"] = tuple(obj["messages"])
            return cls(**_integers(cls, values))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"audit object cannot be read: {error}") from error


def audit_kernel(problem: Problem, schedule: Schedule, log: str, cubin: bytes, entry: str) -> Audit:
    """The audit of a kernel from NVRTC's log (with ptxas -v) and its machine code.

    Raises:
        ValueError: the log has no statistics, or the cubin cannot be read.
    """
    code = decode(cubin, entry)
    counts = Counter(at.name for at in code)
    return Audit(
        registers=_statistic(r"Used (\d+) registers", log),
        stack_bytes=_statistic(r"(\d+) bytes stack frame", log),
        spill_bytes=_statistic(r"(\d+) bytes spill stores", log) + _statistic(r"(\d+) bytes spill loads", log),
        messages=_messages(log),
        instructions=len(code),
        loops=tuple(_k_loop(loop) for loop in k_loops(code)),
        hgmma=counts["HGMMA"] + counts["HGMMA.gsb0"],
        setmaxnreg=counts["USETMAXREG"],
        local=counts["LDL"] + counts["STL"],
        elect=counts["ELECT"],
        loads=counts["UTMALDG"] + counts["UTMALDG.MULTICAST"],
        multicast_loads=counts["UTMALDG.MULTICAST"],
        stores=counts["UTMASTG"],
        stmatrix=counts["STSM"],
        barrier_inits_in_loops=in_wgmma_loops(code, "SYNCS.EXCH"),
        expected_wgmmas=schedule.m64_per_warpgroup * schedule.tile_k * DTYPE_BYTES[problem.dtype] // WGMMA_K_BYTES,
        expected_groups=wgmma_groups(problem, schedule),
        expected_additions=schedule.accumulators * wgmma_groups(problem, schedule) * (problem.accumulate == PROMOTED),
        expected_setmaxnreg=2 if schedule.consumer_regs else 0,
        expected_stores=_stores(problem, schedule) if schedule.store == "tma" else 0,
        expected_stmatrix=schedule.staged and OUT_DTYPE_BYTES[problem.out_dtype] == 2,
        expected_multicast=schedule.multicast,
        expected_elections=_elections(problem, schedule),
    )


def _stores(problem: Problem, s: Schedule) -> int:
    return piece_count(problem, s) * stores_per_piece(problem) * boxes_of_a_piece(problem, s)


def _elections(problem: Problem, schedule: Schedule) -> int:
    """Elections of a thread that loads by TMA: one for each kind of load, and one for what is loaded early."""
    operands = schedule.arrangement != GEMV and not all(copied(problem, operand) for operand in "ab")
    return operands + schedule.asks_early + (schedule.residual_buffers > 0)


def _k_loop(loop: Loop) -> KLoop:
    counts = loop.counts
    return KLoop(
        instructions=loop.instructions,
        hgmma=counts["HGMMA"] + counts["HGMMA.gsb0"],
        gsb0=counts["HGMMA.gsb0"],
        r2ur=counts["R2UR"],
        arrive=counts["WARPGROUP.ARRIVE"],
        depbar=counts["WARPGROUP.DEPBAR"],
        syncs=counts["SYNCS"],
        membar=counts["MEMBAR"],
        cctl=counts["CCTL"],
        bar=counts["BAR"],
        local=counts["LDL"] + counts["STL"],
    )


_STATISTICS = re.compile(r"\d+ bytes|Compiling entry function|Function properties|Used \d+ registers|Compile time")
_PTXAS_LINE = re.compile(r"ptxas\s+(?:info|warning|error|fatal|\.)\s*:?\s*(.*)")


def _messages(log: str) -> tuple[str, ...]:
    """What ptxas says beside statistics: serialised wgmmas, injected fences and waits, ignored setmaxnreg.

    Whatever is not known to be a statistic counts, so that a message of a later compiler is not missed.
    Warnings of the front end about the source (unused variables) do not.
    """
    lines = (_PTXAS_LINE.match(line) for line in log.splitlines())
    return tuple(m[1].strip() for m in lines if m and m[1].strip() and not _STATISTICS.match(m[1]))


def _statistic(pattern: str, log: str) -> int:
    match = re.search(pattern, log)
    if match is None:
        raise ValueError(f"no line with {pattern!r} in the compiler's log")
    return int(match[1])


def _integers(cls: type, obj: Mapping[str, Any]) -> dict[str, Any]:
    """`obj`, checked to have integers (or a truth value) wherever `cls` declares them."""
    for field in fields(cls):
        if field.type in ("int", "bool") and type(obj[field.name]).__name__ != field.type:
            raise TypeError(f"{field.name} is {obj[field.name]!r}, not of type {field.type}")
    return dict(obj)
