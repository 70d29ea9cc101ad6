"""tileseek finds the fastest way to run a matrix multiplication on an NVIDIA Hopper GPU.

    problem = tileseek.Problem(m=8192, n=6144, k=4096, dtype="bf16", layout="nt")
    choice = tileseek.best_schedule(problem)
    d = tileseek.matmul(a, b)  # torch tensors on a Hopper GPU

Names are loaded when they are first used, so that `import tileseek` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import best_schedule as best_schedule
    from .api import load_table as load_table
    from .heuristics.query import Choice as Choice
    from .heuristics.table import Table as Table
    from .matmul import matmul as matmul
    from .space import BadInput as BadInput
    from .space import Device as Device
    from .space import Problem as Problem
    from .space import Schedule as Schedule

__version__ = "0.1.0"

_HOME = {
    "BadInput": ".space",
    "Choice": ".heuristics.query",
    "Device": ".space",
    "Problem": ".space",
    "Schedule": ".space",
    "Table": ".heuristics.table",
    "best_schedule": ".api",
    "load_table": ".api",
    "matmul": ".matmul",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The submodule `matmul` takes the name of its function when it is imported: put the function in its place.
    value = globals()[name] = getattr(importlib.import_module(_HOME[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
