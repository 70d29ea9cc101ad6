"""The fastest that hardware allows."""

from __future__ import annotations

from ..space import DTYPE_BYTES, Device, Problem

DRAM_PEAK_BYTES_PER_S = 4.8e12
"""HBM3e of an H200, datasheet; reads were measured at 4.4e12. No Hopper has more."""


def floor_us(problem: Problem, device: Device) -> float:
    """Microseconds that no correct kernel can beat: the tensor cores at the highest clock, memory at its datasheet
    rate. Operands that rotate over more than the L2 come from memory."""
    return _bound(problem, device, float(device.max_clock_mhz), DRAM_PEAK_BYTES_PER_S)


def roofline_us(problem: Problem, device: Device, clock_mhz: float) -> float:
    """Microseconds at the tensor peak of `clock_mhz` or the measured rate of reading, whichever is longer."""
    return _bound(problem, device, clock_mhz, device.dram_bytes_per_s)


LAUNCH_US = 0.6
"""Microseconds from one launch in a CUDA graph to the next: an empty kernel takes 0.52, one of 132 CTAs of 384 threads
with 220 KB of shared memory 0.61 (measured on an H200)."""


def roofline_share(problem: Problem, device: Device, clock_mhz: float, us: float) -> float:
    """The roofline and a launch as a share of a time of `us` microseconds: 1 where nothing can be gained."""
    return (roofline_us(problem, device, clock_mhz) + LAUNCH_US) / us


def _bound(problem: Problem, device: Device, clock_mhz: float, bytes_per_s: float) -> float:
    flops_per_us = device.sm_count * device.tensor_rate(DTYPE_BYTES[problem.dtype]) * clock_mhz
    return max(problem.flops / flops_per_us, problem.bytes / bytes_per_s * 1e6)
