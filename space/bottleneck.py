"""What holds a measured kernel back. Times of one kind scatter alike, of different kinds they do not."""

from __future__ import annotations

from .device import Device
from .problem import DTYPE_BYTES, Problem

POWER = "power"
MEMORY = "memory"
LATENCY = "latency"
BOTTLENECKS = (POWER, MEMORY, LATENCY)

_MOSTLY = 0.5

RIDGE = {2: 172.0, 1: 344.0}
"""Operations per byte, by the bytes of an operand's element, at which tensor cores take as long as memory: at the clock
to which the power limit of an H200 holds them, 1400 MHz or 757 TFLOP/s of 16 bits, and 4.4 TB/s (both measured,
`results/h200`)."""


def follows_clock(problem: Problem) -> bool:
    """Whether a lower clock makes the product take longer: tensor cores, not memory, are what it waits for. Where power
    holds the clock down, cycles of such kernels scatter five times less over rounds than times; of the others times
    scatter less, up to seven times (finals in `results/h200`)."""
    return problem.flops >= RIDGE[DTYPE_BYTES[problem.dtype]] * problem.bytes


def bottleneck(problem: Problem, device: Device, us: float, power_limited: bool) -> str:
    """`power`: its clock is held down, and it follows the clock; `memory`: moving the operands once takes at least half
    of its `us` microseconds; `latency`: neither, so that launches, waits and tails decide."""
    if power_limited and follows_clock(problem):
        return POWER
    moving_us = problem.bytes / device.dram_bytes_per_s * 1e6
    return MEMORY if moving_us >= _MOSTLY * us else LATENCY
