"""`tileseek roadmap`: what each choice of the Hopper matmul road map is worth on this machine's GPU."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ..api import load_table
from ..heuristics.journal import Journal
from ..heuristics.roadmap_report import roadmap_report
from ..measure.gpus import hopper
from ..space import H200, BadInput, find_device
from .inputs import GpuNumber, TablePath, require
from .output import check_writable, command_line, dumps_json, notes, print_table, progress, write_text

OUT = Path("runs/roadmap/roadmap.json")


def command(
    rows: Annotated[str, typer.Option(help="Rows to measure, such as K3,P6 (default: all).")] = "",
    plan: Annotated[bool, typer.Option("--plan", help="List the pairs and measure nothing; needs no GPU.")] = False,
    out: Annotated[Path, typer.Option(help="The document; report (.md) and journal (.jsonl) go beside it.")] = OUT,
    gpu: GpuNumber = 0,
    device: Annotated[str, typer.Option(help="Device class to plan for.")] = H200.name,
    table: TablePath = None,
) -> None:
    """Measure kernels that differ in one choice against each other, and audit what all kernels have in common.

    An interrupted run goes on where it stopped when the same command is given again.
    """
    ids = [word.strip() for word in rows.split(",") if word.strip()]
    if plan:
        _print_plan(ids, table, device)
        return
    from ..search.roadmap import check_rows

    check_rows(ids)
    hopper(gpu)
    require("tune", "torch", "cuda.bindings", "numpy")
    earlier = _read(out)
    check_writable(out)
    document, stopped = _measure(ids, table, gpu, out, earlier)
    write_text(out.with_suffix(".md"), roadmap_report(document))
    print(f"{len(document['pairs'])} pairs\n{out.with_suffix('.md')}\n{out}\n{out.with_suffix('.jsonl')}")
    if stopped is not None:
        notes.print(f"stopped{stopped and ': ' + stopped}; the same command goes on")
        raise typer.Exit(1 if stopped else 130)


def _print_plan(ids: Sequence[str], table: Path | None, device_name: str) -> None:
    from ..search.roadmap import Pair
    from ..search.roadmap import plan as make_plan

    device = find_device(device_name)
    lines = []
    for each in make_plan(load_table(table, device), device, ids):
        changes = " ".join(f"{name}={value}" for name, value in each.on_changes.items())
        where = [each.row.id, each.row.choice, each.problem_name, changes]
        if isinstance(each, Pair):
            lines.append([*where, each.on.name, each.off.name, each.adjusted or "-"])
        else:
            lines.append([*where, "impossible", "", each.reason])
    print_table(["row", "choice", "problem", "on", "schedule on", "schedule off", "also differs"], lines)


def _read(path: Path) -> dict[str, Any]:
    """The document of an earlier run.

    Raises:
        BadInput: there is a file, and it is no such document.
    """
    try:
        document = json.loads(path.read_text()) if path.exists() and path.stat().st_size else {"pairs": []}
        assert isinstance(document["pairs"], list)
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise BadInput(f"{path} is no document of `tileseek roadmap`: valid is one, or a new file") from error
    return document


def _measure(
    ids: Sequence[str], table: Path | None, gpu: int, out: Path, earlier: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """The document, and what stopped it early: None for nothing, no words for Ctrl-C."""
    from ..codegen import CompilePool
    from ..measure.supervisor import MeasureError, Measurer
    from ..search.ablation import ABLATION, measure_pairs
    from ..search.roadmap import Impossible, Pair
    from ..search.roadmap import plan as make_plan
    from ..search.runner import LiveRunner

    stopped = None
    with (
        Journal(out.with_suffix(".jsonl"), alone=True) as journal,
        CompilePool() as pool,
        Measurer(gpu) as measurer,
        LiveRunner(pool, measurer) as runner,
    ):
        planned = make_plan(load_table(table, measurer.device), measurer.device, ids)
        pairs = [each for each in planned if isinstance(each, Pair)]
        found = {
            _key(row): row
            for row in earlier["pairs"]
            if (row["env"], row["policy"]) == (runner.env_key, ABLATION.key) and row["ratio"] is not None
        }
        document: dict[str, Any] = {
            "env": measurer.env,
            "policy": {**asdict(ABLATION), "key": ABLATION.key},
            "command": command_line(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "pairs": [],
            "impossible": [
                {"row": at.row.id, "choice": at.row.choice, "problem_name": at.problem_name, "reason": at.reason}
                for at in planned
                if isinstance(at, Impossible)
            ],
            "invariants": _invariants(pairs, pool, measurer.device),
        }

        def write() -> None:
            document["pairs"] = [found[pair.key] for pair in pairs if pair.key in found]
            write_text(out, dumps_json(document))

        missing = [pair for pair in pairs if pair.key not in found]
        try:
            with progress("measuring", len(missing)) as advance:

                def keep(row: dict[str, Any]) -> None:
                    found[_key(row)] = row
                    write()
                    advance(f"{row['row']} {row['problem_name']}", sum(pair.key in found for pair in missing))

                measure_pairs(missing, runner, journal, keep)
        except KeyboardInterrupt:
            stopped = ""
        except MeasureError as error:
            stopped = str(error)
        write()
    return document, stopped


def _key(row: dict[str, Any]) -> tuple[str, str, str, str]:
    return (row["row"], row["problem_name"], row["on"]["schedule"], row["off"]["schedule"])


def _invariants(pairs: Sequence[Any], pool: Any, device: Any) -> dict[str, Any]:
    """The `invariants` of the document: numbers over the kernels of the pairs and a sample of the space."""
    from ..codegen.invariants import INVARIANTS
    from ..search.roadmap import audit_sample

    own = [(pair.problem, schedule.kernel) for pair in pairs for schedule in (pair.on, pair.off)]
    kernels = list(dict.fromkeys([*own, *audit_sample(device)]))
    with progress("compiling", len(kernels)) as advance:
        done = itertools.count(1)
        compiled = pool.compile_many(kernels, lambda index, kernel: advance("compiling", next(done)))
    accepted = [kernel.audit for kernel in compiled if kernel.status == "ok" and kernel.audit is not None]
    return {
        "kernels": len(accepted),
        "rejected": {
            f"{problem.kind} {schedule.name}": f"{kernel.status}: {kernel.reason}"
            for (problem, schedule), kernel in zip(kernels, compiled, strict=True)
            if kernel.status != "ok"
        },
        "rows": [
            {"row": each.id, "wish": each.wish, "check": each.check, "facts": each.facts(accepted)}
            for each in INVARIANTS
        ],
    }
