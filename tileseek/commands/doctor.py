"""`tileseek doctor`: what this machine can do, and what it lacks for the rest."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from .. import __version__
from ..api import load_table
from ..measure.gpus import HOPPER, gpus
from ..space import BadInput
from .inputs import AsJson
from .output import print_json, print_table

_SEARCH = ("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm", "numpy", "optuna", "scikit-learn")
_MEASURE = ("torch",)


def command(as_json: AsJson = False) -> None:
    """Say what works on this machine: query, compile and search, measure and tune."""
    facts = _facts()
    if as_json:
        print_json(facts)
        return
    rows = [[name, "yes" if able["ready"] else "no", able["detail"]] for name, able in facts["abilities"].items()]
    rows += [["package", package, version or "not installed"] for package, version in facts["packages"].items()]
    rows += [
        ["GPU", gpu["name"], f"compute capability {gpu['cc']}, {gpu['memory'] >> 20} MiB"] for gpu in facts["gpus"]
    ]
    rows += [["tileseek", facts["tileseek"], f"Python {facts['python']}"]]
    print_table(["", "", ""], rows)


def _facts() -> dict[str, Any]:
    packages = {name: _installed(name) for name in (*_SEARCH, *_MEASURE)}
    found = gpus()
    hoppers = [gpu for gpu in found if gpu.cc == HOPPER]
    searches = _ability([name for name in _SEARCH if not packages[name]], _compiler())
    measures = _ability(
        [name for name in (*_SEARCH, *_MEASURE) if not packages[name]],
        "" if hoppers else "no Hopper GPU: tune replays the bundled journal",
    )
    return {
        "tileseek": __version__,
        "python": platform.python_version(),
        "packages": packages,
        "gpus": [
            {"index": g.index, "name": g.name, "cc": g.cc, "sm_count": g.sm_count, "memory": g.memory} for g in found
        ],
        "abilities": {"query": _table(), "compile and search": searches, "measure": measures},
    }


def _ability(missing: list[str], problem: str) -> dict[str, Any]:
    reasons = [f"not installed: {', '.join(missing)}"] if missing else []
    reasons += [problem] if problem else []
    return {"ready": not reasons, "detail": "; ".join(reasons)}


def _table() -> dict[str, Any]:
    try:
        table = load_table()
    except BadInput as error:
        return {"ready": False, "detail": str(error)}
    return {"ready": True, "detail": f"table for {table.device.name} with {len(table.entries)} problems"}


def _compiler() -> str:
    """What keeps the compiler from working; empty when nothing does."""
    from ..codegen.nvrtc import compiler_version

    try:
        compiler_version()
    except BadInput as error:
        return str(error)
    return ""


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
