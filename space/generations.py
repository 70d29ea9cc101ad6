"""Versions of the code generator, and which kernels each of them changed.

A time belongs to the kernel that was measured. Where a new version of the generator leaves a kernel as it was, times of
the version before stay true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .schedule import Schedule

CHANGES: Mapping[str, Callable[[Schedule], bool]] = {
    # A CTA of a cluster leaves when its last stage has been handed back, not at a barrier of the cluster.
    "3": lambda schedule: schedule.multicast,
}
"""For each version, whether the kernel of a schedule is another than that of the version before."""


def same_kernel(schedule: Schedule, made_with: str, version: str) -> bool:
    """Whether the generator `made_with`, which is not newer than `version`, made the same kernel as `version` does."""
    if made_with == version:
        return True
    if not (made_with.isdecimal() and version.isdecimal()) or int(made_with) > int(version):
        return False
    between = map(str, range(int(made_with) + 1, int(version) + 1))
    return all(later in CHANGES and not CHANGES[later](schedule) for later in between)
