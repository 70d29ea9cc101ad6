"""`tileseek calibrate`: fit the constants of the analytic model to a journal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..heuristics.table import all_measures
from ..results import journal_path
from ..space import H200, find_device
from .inputs import MeasuredOn, read_journals, require, whole_number
from .output import check_writable, command_line, dumps_json, write_text


def command(
    journal: Annotated[
        list[Path] | None, typer.Option(help="Journal to fit to (default: bundled); may be repeated.")
    ] = None,
    device: MeasuredOn = H200.name,
    per_problem: Annotated[int, typer.Option(parser=whole_number, help="Most measures of a problem to use.")] = 45,
    seed: Annotated[int, typer.Option(parser=whole_number, help="Seed by which they are drawn.")] = 0,
    out: Annotated[Path | None, typer.Option(help="File that gets the JSON document (default: stdout).")] = None,
) -> None:
    """Print the constants that agree best with a journal, where they come from, and the error before and after.

    They are for `Constants` in cost_model/analytic.py, which says what each means. A few minutes on one core.
    """
    require("search", "numpy", "scipy")
    if out is not None:
        check_writable(out)
    from ..cost_model.calibration import calibrate

    where = find_device(device)
    files = journal or [journal_path(where)]
    fitted = calibrate(all_measures(read_journals(files), where), where, per_problem, seed=seed)
    source = {"command": command_line(), "device": where.name}
    write_text(out, dumps_json({**source, **fitted.to_json()}))
