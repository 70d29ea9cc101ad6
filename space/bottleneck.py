"""What holds a measured kernel back. Times of one kind scatter alike, of different kinds they do not."""

from __future__ import annotations

from .device import Device
from .problem import Problem

POWER = "power"
MEMORY = "memory"
LATENCY = "latency"
BOTTLENECKS = (POWER, MEMORY, LATENCY)

_MOSTLY = 0.5


def bottleneck(problem: Problem, device: Device, us: float, power_limited: bool) -> str:
    """`power`: its clock is held down; `memory`: moving the operands once takes at least half of its `us` microseconds;
    `latency`: neither, so that launches, waits and tails decide."""
    if power_limited:
        return POWER
    moving_us = problem.bytes / device.dram_bytes_per_s * 1e6
    return MEMORY if moving_us >= _MOSTLY * us else LATENCY
