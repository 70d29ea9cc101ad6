"""What worker processes have in common."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when process `parent` ends, or its thread that started this one, however it
    ends: killed too, and in the middle of whatever this process does."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)
