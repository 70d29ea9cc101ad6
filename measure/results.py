"""What is measured and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..codegen.compiler import CompiledKernel
from ..space import Schedule

CORRECT = "correct"
STATUSES = (CORRECT, "runtime", "timeout", "correctness", "memory", "implausible")
"""`runtime`: the launch failed or ended the CUDA context; `timeout`: it hung; `correctness`: a wrong value or a write
outside the output; `memory`: the GPU has too little; `implausible`: faster than the hardware allows."""

RATIOS = ("ratio_to_ref", "ratio_to_best", "ratio_cycles", "ratio_cycles_best")
"""Paired ratios of a result: reference over candidate, median over rounds, above 1 where the candidate is faster.

`ratio_to_ref` is against cuBLAS's default, `ratio_to_best` against the fastest that cuBLAS and cuBLASLt have; those
of cycles compare time x effective clock.
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A compiled schedule: `cubin` with the kernel `entry`, which uses `regs` registers a thread.

    One that is `plain` computes the product alone, whatever epilogue the problem has: it shows what fusing costs.
    """

    schedule: Schedule
    cubin: bytes
    entry: str
    regs: int
    plain: bool = False

    @classmethod
    def of(cls, schedule: Schedule, kernel: CompiledKernel, plain: bool = False) -> Candidate:
        """The candidate of a kernel that was compiled and accepted (status `ok`)."""
        return cls(schedule, kernel.cubin, kernel.entry, kernel.audit.registers if kernel.audit else 0, plain)


def shortened(value: Any) -> Any:
    """A value for a journal, its numbers with six significant digits: measures scatter in the fourth."""
    match value:
        case float():
            return float(f"{value:.6g}")
        case dict():
            return {name: shortened(each) for name, each in value.items()}
        case list() | tuple():
            return [shortened(each) for each in value]
    return value


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one candidate. Times are microseconds of one call; lists have one item for each round.

    Everything but `schedule`, `status`, `reason`, `regs` and `check` has its default unless the candidate was timed.
    """

    schedule: Schedule
    status: str
    reason: str = ""
    regs: int = 0
    smem: int = 0
    check: Mapping[str, Any] = field(default_factory=dict)
    """`worst`: largest error as a share of its tolerance; `norm`: relative error of the whole output; `seeds`;
    `companions`: the odd shapes that were right to the bit; `repeats`: launches that gave the same output again."""
    times_us: tuple[float, ...] = ()
    clocks_mhz: tuple[float, ...] = ()
    """The effective SM clock of each of them."""
    rounds: tuple[int, ...] = ()
    """The round of each of them: two candidates of one race are compared round by round."""
    median_us: float = 0.0
    median_cycles: float = 0.0
    """Cycles of one SM for one call: time x effective clock."""
    ratio_to_ref: float = 0.0
    ratio_to_best: float = 0.0
    ratio_cycles: float = 0.0
    ratio_cycles_best: float = 0.0
    ci95: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The 95 % interval of each of RATIOS."""
    ref: str = ""
    ref_us: float = 0.0
    best: str = ""
    best_us: float = 0.0
    clock_mhz: float = 0.0
    """Effective SM clock in the candidate's own slots."""
    power_w: float = 0.0
    temperature_c: int = 0
    throttle: int = 0
    """NVML's clock event reasons seen in the candidate's slots, as bits: 4 is the software power cap."""
    power_limited: bool = False
    """Whether cuBLAS ran below space.POWER_LIMITED_MHZ on this problem."""
    slot_ms: float = 0.0
    discarded: int = 0
    """Samples left out because something else had changed the state of the card (conditions.py)."""
    energy_mj: float = 0.0
    """Millijoules of one call; 0 where the policy counts no energy."""
    ratio_energy: float = 0.0
    """Energy of cuBLAS's default over the candidate's: the median over passes."""

    @property
    def correct(self) -> bool:
        """Whether the times may be used."""
        return self.status == CORRECT

    def to_json(self) -> dict[str, Any]:
        """Every field by name, for a journal line."""
        obj = asdict(self)
        return {name: shortened(value) for name, value in obj.items()}
