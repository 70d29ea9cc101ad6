"""torch, imported when first needed: only the worker needs it, and only where there is a GPU."""

from __future__ import annotations

import functools
import importlib
from typing import Any


@functools.cache
def torch() -> Any:
    """The torch module."""
    return importlib.import_module("torch")
