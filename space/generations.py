"""Versions of the code generator, and which kernels each of them changed.

A time belongs to the kernel that was measured. Where a new version of the generator leaves a kernel as it was, times of
the version before stay true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .problem import Problem
from .resources import registers_for_parts, turns_crowd_loop, two_parts_spill, wanted_for_parts
from .schedule import GEMV, Schedule


def _fits_better(problem: Problem, schedule: Schedule) -> bool:
    """Kernels that the audit rejects now and then: threads that copy count k-blocks for themselves; two parts of a tile
    that registers do not hold are added in turn; the K loop is told whose turn it is where it has no room to work it
    out."""
    return schedule.load == "copy" or two_parts_spill(problem, schedule) or turns_crowd_loop(schedule)


CHANGES: Mapping[str, Callable[[Problem, Schedule], bool]] = {
    # A CTA of a cluster leaves when its last stage has been handed back, not at a barrier of the cluster.
    "3": lambda problem, schedule: schedule.multicast,
    "4": _fits_better,
    # Of a tile whose K is shared, each keeps only what others add up, and loads all that it adds up at once.
    "5": lambda problem, schedule: schedule.reduction == "shares",
    # No more of them at once than registers hold.
    "6": lambda problem, schedule: (
        schedule.reduction == "shares" and registers_for_parts(schedule) < wanted_for_parts(schedule)
    ),
    # An element is activated as the residual is added to it, or as it is stored, and not with its piece before.
    "7": lambda problem, schedule: problem.fused.activated in ("added", "stored") and schedule.arrangement != GEMV,
}
"""For each version, whether the kernel of a schedule for a problem is another than that of the version before."""

OLDEST = "3"
"""The version that sources name which none since has changed."""


def last_change(problem: Problem, schedule: Schedule) -> str:
    """The version that made the kernel what it is, which its source names: a kernel that stays keeps its text."""
    changed = [version for version, changes in CHANGES.items() if changes(problem, schedule)]
    return max([OLDEST, *changed], key=int)


def same_kernel(problem: Problem, schedule: Schedule, made_with: str, version: str) -> bool:
    """Whether the generator `made_with`, which is not newer than `version`, made the same kernel as `version` does."""
    if made_with == version:
        return True
    if not (made_with.isdecimal() and version.isdecimal()) or int(made_with) > int(version):
        return False
    between = map(str, range(int(made_with) + 1, int(version) + 1))
    return all(later in CHANGES and not CHANGES[later](problem, schedule) for later in between)
