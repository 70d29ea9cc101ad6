"""How to measure: slot lengths, rounds, checks. A result is comparable with another of the same policy."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from ..space import FOR_TIME, POWER_LIMITED_MHZ

SUSTAINED = "sustained"
BURST = "burst"

ENERGY_MS = 100.0
CLAIMED_ENERGY_MS = 300.0
"""Length of a stretch over which power is measured: to rank, where the board's counter resolves 1 % or so, and to
claim."""


DEALINGS = 8
"""Places at which the hardware may begin to deal CTAs to SMs: the GPCs of an H200."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one kind of measurement. Times are of the GPU, in milliseconds unless the name says seconds."""

    name: str
    regime: str = SUSTAINED
    """`sustained`: every slot follows a spacer of cuBLAS, so that all see one thermal and power state;
    `burst`: every slot follows `idle_ms` of rest."""
    slot_ms: float = 2.0
    """Length of a timed slot; a kernel that is longer runs once."""
    limited_slot_ms: float = 2.0
    """The same where cuBLAS runs below POWER_LIMITED_MHZ: long slots give a frugal kernel its own higher clock."""
    spacer_ms: float = 1.0
    idle_ms: float = 0.0
    rounds: int = 5
    l2_multiple: float = 3.0
    """Operands and outputs rotate over more than this many times the L2."""
    dealings: int = 0
    """Rounds go in turn through so many GPCs at which the hardware begins to deal CTAs to SMs (`Clock.deal_from`). A
    kernel's time depends on it, by some percent and for each kernel in its own way; 0 leaves it as the work before a
    slot left it, all rounds of a call at the same."""
    check_seeds: int = 1
    """Random operand sets on which the result is compared with the reference, before and after timing."""
    race_rounds: int = 3
    """Rounds in which the algorithms of cuBLASLt run against each other, once for each problem."""
    finalists: int = 1
    """The fastest of those, which take part in every round."""
    claims: bool = False
    """Whether times of this policy are claimed against cuBLAS: the race for the best algorithm then goes by time
    also where the clock decides; otherwise by cycles, which scatter ten times less there."""
    max_ms: float = 1000.0
    """A candidate that has taken this long, and has three samples, sits out the remaining rounds."""
    timeout_s: float = 20.0
    """Longest wait for a sign of life while one candidate is verified."""
    seed: int = 0
    check_repeats: int = 0
    """Launches that have to give the same output once more, bit for bit where the schedule is deterministic. A kernel
    that is wrong once in 100 launches passes 300 of them with a probability of 5 %."""
    energy_ms: float = 0.0
    """Each contestant runs alone for so long while the energy of the board is counted; 0 counts none."""
    energy_passes: int = 1
    """How often, in an order drawn anew."""
    objective: str = FOR_TIME
    """What the run tunes for, one of space.OBJECTIVES. It stands before the key of another than time, so that results
    of runs with different aims are never taken for each other's."""

    @property
    def key(self) -> str:
        """The name and a short hash of every field that a time can depend on: `final-3fa2b1c09d7e`.

        Fields added later leave the hash as it was at their defaults; `check_repeats` decides what is accepted and not
        how it is timed.
        """
        fields = asdict(self)
        del fields["check_repeats"]
        for name, default in _LATER.items():
            if fields[name] == default:
                del fields[name]
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
        aim = "" if self.objective == FOR_TIME else f"{self.objective}:"
        return f"{aim}{self.name}-{digest[:12]}"

    def tuning_for(self, objective: str) -> Policy:
        """This policy in a run that tunes for `objective`: with energy, where that is of interest."""
        return self if objective == FOR_TIME else replace(self.with_energy(), objective=objective)

    def with_energy(self) -> Policy:
        """This policy with energy counted as well."""
        if self.claims:
            return replace(self, energy_ms=CLAIMED_ENERGY_MS, energy_passes=2)
        return replace(self, energy_ms=ENERGY_MS)

    def slot(self, effective_mhz: float) -> float:
        """Milliseconds of a slot for a problem on which cuBLAS runs at `effective_mhz`."""
        return self.limited_slot_ms if effective_mhz < POWER_LIMITED_MHZ else self.slot_ms


_LATER = {"dealings": 0, "energy_ms": 0.0, "energy_passes": 1, "objective": FOR_TIME}

SCREEN = Policy("screen")
"""To rank candidates: about 20 ms of GPU time each."""

FINAL = Policy(
    "final",
    slot_ms=4.0,
    limited_slot_ms=25.0,
    rounds=24,
    dealings=DEALINGS,
    check_seeds=2,
    race_rounds=7,
    finalists=3,
    claims=True,
    max_ms=10_000.0,
    check_repeats=300,
)
"""To claim: 24 rounds, in 25 ms slots where power limits."""

BURST_FINAL = Policy(
    "burst",
    regime=BURST,
    slot_ms=2.5,
    limited_slot_ms=2.5,
    spacer_ms=0.0,
    idle_ms=60.0,
    rounds=8,
    dealings=DEALINGS,
    check_seeds=2,
    race_rounds=5,
    finalists=3,
    claims=True,
    check_repeats=300,
)
"""What a short run from rest sees: up to 15 % faster than sustained."""

POLICIES = {policy.name: policy for policy in (SCREEN, FINAL, BURST_FINAL)}
