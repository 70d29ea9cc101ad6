"""The last word: the finalists, the incumbent, cuBLAS and the best of cuBLASLt in the same long rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..heuristics.journal import Measure
from ..heuristics.noise import Noise
from ..heuristics.selection import select_final
from ..measure.policy import FINAL, Policy
from ..space import Device, Schedule

SHORT_FINAL = replace(
    FINAL, name="final-short", slot_ms=2.0, limited_slot_ms=10.0, rounds=16, race_rounds=5, finalists=2
)
BRIEF_FINAL = replace(SHORT_FINAL, name="final-brief", rounds=8, race_rounds=3, check_seeds=1)
FINALS = (FINAL, SHORT_FINAL, BRIEF_FINAL)
"""How the last word may be spoken, the most careful first. Slots of 10 ms still give a kernel a power state of its
own; fewer rounds tell times apart that differ by 1 % or more."""

_ALGORITHMS = 8
"""What cuBLASLt offers for most problems."""

_OPENING_S = 0.6
_OPENING_CALLS = 40
"""Operands, references and checks of a problem, about: fixed, and in calls of the kernel, for the exact product is
in single precision."""

_LOOKING_MS = 1.0
"""The host between two slots that it watches one by one."""

_COUNTING_S = 0.15
"""Before and after a stretch in which energy is counted: warming up, waiting for the counter."""

_REPEAT_S = 2e-4
_REPEATING_S = 0.4
"""Comparing one more output with the first; and the most that all of them take of a candidate."""


def final_seconds(policy: Policy, limited: bool, call_us: float, contestants: int) -> float:
    """About how long a final takes of a problem on which one call takes `call_us`; `limited`: by power."""
    slot = policy.limited_slot_ms if limited else policy.slot_ms
    each = max(slot, call_us / 1e3) + max(policy.spacer_ms, call_us / 1e3) + _LOOKING_MS
    everybody = 1 + policy.finalists + contestants
    slots = policy.race_rounds * _ALGORITHMS + policy.rounds * everybody
    counting_s = policy.energy_passes * everybody * (policy.energy_ms / 1e3 + _COUNTING_S) if policy.energy_ms else 0.0
    repeating_s = contestants * min(_REPEATING_S, policy.check_repeats * (call_us / 1e6 + _REPEAT_S))
    return _OPENING_S + _OPENING_CALLS * call_us / 1e6 + slots * each / 1e3 + counting_s + repeating_s


def decide(
    measures: Sequence[Measure], device: Device, noise: Noise | None = None, incumbent: Schedule | None = None
) -> Measure | None:
    """The winner among measures of the same rounds: `selection.select_final`, so that a table of the same measures says
    the same, but for the incumbent, whom a tie leaves in place."""
    if not measures:
        return None
    selection = select_final(measures, device, noise or Noise(), measures[0].objective, incumbent)
    if selection is None:
        return None
    return next(m for m in measures if m.schedule == selection.winner and m.status == "correct")
