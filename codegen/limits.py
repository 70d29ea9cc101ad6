"""How many compilations this machine can run at once."""

from __future__ import annotations

import os
from pathlib import Path

WORKER_BYTES = 512 << 20
"""Memory planned for one worker. Python with NVRTC takes 120 MB for kernels of this project; a kernel on which
the compiler goes astray takes several times that."""

_CGROUP = Path("/sys/fs/cgroup")


def worker_limit() -> int:
    """The number of compile workers that cores and free memory allow, at least 1."""
    return max(1, min(_cores(), _free_bytes() // WORKER_BYTES))


def _cores() -> int:
    """Cores this process may use: its affinity, and the quota of its container."""
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, -(-int(quota) // int(period)))
    return cores


def _free_bytes() -> int:
    """Memory that can be had without swapping, on the machine and in its container."""
    lines = dict(line.split(":", 1) for line in _read(Path("/proc/meminfo")).splitlines())
    free = int(lines["MemAvailable"].split()[0]) << 10 if "MemAvailable" in lines else WORKER_BYTES
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        free = min(free, int(limit) - int(used))
    return free


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
