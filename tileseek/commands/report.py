"""`tileseek report`: what journals say, against cuBLAS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..api import load_noise
from ..heuristics.report import report
from ..heuristics.table import build_table
from ..problems import suite, suite_names
from ..results import journal_path
from ..space import FOR_TIME, H200, find_device
from .inputs import Objective, check_objective, journal_files, read_journals
from .output import write_text


def command(
    journals: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[JOURNAL | RUN]...", help="Journals or run folders (default: bundled)."),
    ] = None,
    device: Annotated[str, typer.Option(help="Device class to report on.")] = H200.name,
    objective: Objective = FOR_TIME,
    out: Annotated[Path | None, typer.Option(help="File to write (default: stdout).")] = None,
) -> None:
    """Print a report in Markdown: winners against cuBLAS, coverage, counts of everything measured."""
    where = find_device(device)
    files = [file for path in journals for file in journal_files(path)] if journals else [journal_path(where)]
    contents = read_journals(files)
    noise = load_noise(where)
    table = build_table(contents, where, objective=check_objective(objective), noise=noise)
    names = sorted(suite_names(), key=lambda name: (name != "headline", name))
    write_text(out, report(contents, table, noise=noise, suites={name: suite(name) for name in names}))
