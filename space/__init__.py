"""The space: problems, schedules, devices, and the rules that join them. Standard library only."""

from .bottleneck import BOTTLENECKS, LATENCY, MEMORY, POWER, bottleneck, follows_clock
from .device import DEVICES, H100, H200, POWER_LIMITED_MHZ, Device, find_device
from .enumeration import (
    ALL_VALUES,
    DIMENSIONS,
    KERNEL_DIMENSIONS,
    domain,
    draw,
    enumerate_schedules,
    nearest,
    neighbours,
    sample,
)
from .epilogue import ACTIVATIONS, EPILOGUE_WORDS, Epilogue
from .errors import BadInput, shown
from .objective import FOR_EDP, FOR_ENERGY, FOR_TIME, OBJECTIVES
from .pitches import Pitch, Pitches
from .problem import DTYPE_BYTES, FAST, LAYOUTS, OUT_DTYPE_BYTES, PROMOTED, Kind, NamedProblem, Problem, read_suite
from .resources import SharedMemory, shared_memory, store_pieces
from .rules import misfits, unsupported, violations
from .schedule import COOPERATIVE, GEMV, LAUNCH_FIELDS, PINGPONG, Schedule
from .tiles import TileGrid, ceil_div, kernel_extents, tile_grid, tile_position

__all__ = [
    "ACTIVATIONS",
    "ALL_VALUES",
    "BOTTLENECKS",
    "COOPERATIVE",
    "DEVICES",
    "DIMENSIONS",
    "DTYPE_BYTES",
    "EPILOGUE_WORDS",
    "FAST",
    "FOR_EDP",
    "FOR_ENERGY",
    "FOR_TIME",
    "GEMV",
    "H100",
    "H200",
    "KERNEL_DIMENSIONS",
    "LATENCY",
    "LAUNCH_FIELDS",
    "LAYOUTS",
    "MEMORY",
    "OBJECTIVES",
    "OUT_DTYPE_BYTES",
    "PINGPONG",
    "POWER",
    "POWER_LIMITED_MHZ",
    "PROMOTED",
    "BadInput",
    "Device",
    "Epilogue",
    "Kind",
    "NamedProblem",
    "Pitch",
    "Pitches",
    "Problem",
    "Schedule",
    "SharedMemory",
    "TileGrid",
    "bottleneck",
    "ceil_div",
    "domain",
    "draw",
    "enumerate_schedules",
    "find_device",
    "follows_clock",
    "kernel_extents",
    "misfits",
    "nearest",
    "neighbours",
    "read_suite",
    "sample",
    "shared_memory",
    "shown",
    "store_pieces",
    "tile_grid",
    "tile_position",
    "unsupported",
    "violations",
]
