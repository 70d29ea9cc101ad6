"""What `import tileseek` offers beside the words of the space: tables and queries."""

from __future__ import annotations

import functools
from pathlib import Path

from .heuristics.noise import Noise, read_noise
from .heuristics.query import Choice
from .heuristics.query import best_schedule as query
from .heuristics.table import Table
from .heuristics.table import load_table as read_table
from .measure.gpus import HOPPER, gpus
from .results import has_table, noise_path, table_path
from .space import H200, BadInput, Device, Problem, find_device, shown


def best_schedule(
    problem: Problem, table: Table | None = None, device: Device | str | None = None, quick: bool = False
) -> Choice:
    """The best schedule known for `problem`.

    `table` defaults to the bundled one; `device` (a class or its name) to the Hopper GPU of this machine, and
    without one to the device of the table. The rules are checked for the problem, so that what comes back can
    be launched; `provenance` says where it comes from. For a problem that is not in the table schedules are drafted,
    which takes some 50 milliseconds the first time; `quick` goes by the nearest problems alone, in one.

    Raises:
        BadInput: no kernel can run the problem, it is no `Problem`, or the device is unknown.
    """
    if isinstance(device, str):
        device = find_device(device)
    if not isinstance(problem, Problem):
        raise BadInput(f"problem is {shown(problem)}: valid is a Problem, such as Problem(m=8192, n=6144, k=4096)")
    device = device or local_device()
    return query(problem, table or _bundled(device), device, quick)


def load_table(path: str | Path | None = None, device: Device | str | None = None) -> Table:
    """Read the table at `path`, or the bundled one of `device` (default: of this machine's GPU, else H200).

    Raises:
        BadInput: the file cannot be read, is not a table, or has a newer schema.
    """
    if path is not None:
        return read_table(path)
    return _bundled(find_device(device) if isinstance(device, str) else device or local_device())


def load_noise(device: Device) -> Noise:
    """What measuring on `device` resolves: as measured, where that comes with tileseek."""
    path = noise_path(device)
    return Noise() if path is None else read_noise(path)


@functools.cache
def local_device() -> Device | None:
    """The device class of this machine's first GPU, if that is a Hopper."""
    return next((gpu.device for gpu in gpus()[:1] if gpu.cc == HOPPER), None)


@functools.cache
def _bundled(device: Device | None) -> Table:
    """The table of `device`, or else that of an H200: the best there is for a class without one, and queries warn.
    Where none is bundled an empty one leaves every answer to the analytic model."""
    for candidate in (device, H200):
        if candidate and has_table(candidate):
            return read_table(table_path(candidate))
    return Table(device or H200, generator="", compiler="", entries=())
