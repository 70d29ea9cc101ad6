"""`tileseek doctor`: what this machine can do, what it lacks for the rest, and what to do about it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import __version__
from ..api import load_table
from ..codegen.cache import Cache
from ..codegen.nvrtc import compiler_version
from ..health import Finding, check_cache, check_compiler, check_gpu, check_journal
from ..measure.gpus import HOPPER, gpus
from ..measure.nvml import Nvml, NvmlError
from ..results import has_table, journal_path
from ..space import BadInput
from .inputs import AsJson, journal_files
from .output import print_json, print_table

_SEARCH = ("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm", "numpy", "optuna", "scikit-learn")
_MEASURE = ("torch",)


def command(
    journals: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[JOURNAL | RUN]...", help="Journals or run folders to look at (default: bundled)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what works on this machine, and look after its GPUs, compiler, kernel cache and journals.

    Each finding that needs something done says what.
    """
    facts = _facts()
    findings = _findings([file for path in journals for file in journal_files(path)] if journals else None)
    if as_json:
        print_json({**facts, "findings": [{**asdict(finding), "ok": finding.ok} for finding in findings]})
        return
    rows = [[name, "yes" if able["ready"] else "no", able["detail"]] for name, able in facts["abilities"].items()]
    rows += [["package", package, version or "not installed"] for package, version in facts["packages"].items()]
    rows += [
        ["GPU", gpu["name"], f"compute capability {gpu['cc']}, {gpu['memory'] >> 20} MiB"] for gpu in facts["gpus"]
    ]
    rows += [["tileseek", facts["tileseek"], f"Python {facts['python']}"]]
    rows += [["", "", ""]]
    rows += [[finding.about, "ok" if finding.ok else "look", finding.detail] for finding in findings]
    print_table(["", "", ""], rows)
    todo = [finding for finding in findings if not finding.ok]
    if todo:
        print("\nWhat to do:")
    for finding in todo:
        print(f"- {finding.about}: {finding.detail}: {finding.advice}")


def _findings(journals: Sequence[Path] | None) -> list[Finding]:
    compiler = "" if _compiler() else compiler_version()
    found: list[Finding] = []
    for gpu in gpus():
        try:
            found += check_gpu(gpu, Nvml(gpu.uuid))
        except NvmlError as error:
            advice = "clocks, power and memory cannot be read: install NVML, a part of the driver, before measuring"
            found.append(Finding(f"GPU {gpu.index}: driver", str(error), advice))
    try:
        table = load_table()
    except BadInput as error:
        found.append(Finding("table", str(error), "install tileseek again"))
    else:
        found += check_compiler(compiler, table)
        if journals is None and has_table(table.device):
            journals = [journal_path(table.device)]
    try:
        found += check_cache(Cache())
    except BadInput as error:
        found.append(Finding("cache", str(error), "set TILESEEK_CACHE to a folder of your own"))
    for path in journals or ():
        found += check_journal(path, compiler)
    return found


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
