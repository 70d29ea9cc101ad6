"""Energy of a call, from NVML's counter of the whole board."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from .nvml import NvmlError

PATIENCE_S = 1.0
"""Longest wait for the counter to move. It is brought up to date a few tens of times a second."""


class Counter(Protocol):
    """What NVML gives."""

    def energy_mj(self) -> int:
        """Millijoules since the driver was loaded."""
        ...


def mean_power_w(
    counter: Counter,
    least_s: float,
    keep_busy: Callable[[], None],
    now: Callable[[], float] = time.monotonic,
) -> float:
    """Mean power of the board over at least `least_s` seconds, between two moments at which the counter moves.

    The counter moves in steps; read in between it is late by up to one, which over a short stretch would be the largest
    error. From step to step what is left is the time between two looks, 0.5 ms or so of the whole stretch.
    `keep_busy` is called between looks: it gives the GPU work, and waits a little.

    Raises:
        NvmlError: the counter stands still.
    """

    def next_step() -> tuple[float, int]:
        start, deadline = counter.energy_mj(), now() + PATIENCE_S
        while True:
            keep_busy()
            value, moment = counter.energy_mj(), now()
            if value != start:
                return moment, value
            if moment > deadline:
                raise NvmlError(f"the energy counter stands still for {PATIENCE_S:g} s")

    began, first = next_step()
    while True:
        moment, value = next_step()
        if moment - began >= least_s:
            return (value - first) / 1000 / (moment - began)
