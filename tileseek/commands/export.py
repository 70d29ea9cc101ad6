"""`tileseek export`: a table in the form another tool reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..api import load_table
from ..heuristics.export import left_out, to_csv, to_inductor, to_nvfuser, to_t4
from ..heuristics.journal import read_journal
from ..results import journal_path
from ..space import FOR_TIME, H200, BadInput, find_device
from ..tables import make_table
from .inputs import Objective, TablePath, check_objective, require
from .output import notes, write_text

_OF_TABLES = {"csv": to_csv, "inductor": to_inductor, "nvfuser": to_nvfuser}
_OF_JOURNALS = ("table", "t4")


def command(
    form: Annotated[str, typer.Argument(metavar="FORM", help="csv, inductor, nvfuser, table or t4.")],
    table: TablePath = None,
    journal: Annotated[
        list[Path] | None, typer.Option(help="Journal for table and t4 (default: bundled); may be repeated.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device class, for table.")] = H200.name,
    objective: Objective = FOR_TIME,
    out: Annotated[Path | None, typer.Option(help="File to write (default: stdout).")] = None,
) -> None:
    """Write a table (csv, inductor, nvfuser) in the form another tool reads, or make a table or T4 of journals."""
    if form in _OF_TABLES:
        source = load_table(table)
        write_text(out, _OF_TABLES[form](source))
        reasons = left_out(form, source)
        if reasons:
            counts = ", ".join(f"{count} because {reason}" for reason, count in reasons.most_common())
            total = len(source.entries)
            notes.print(f"exported {total - reasons.total()} of {total} entries; left out: {counts}")
    elif form in _OF_JOURNALS:
        where = find_device(device)
        check_objective(objective)
        if form == "table":
            require("search", "numpy", "sklearn")
        contents = read_journal(journal or [journal_path(where)])
        if contents.skipped:
            notes.print(f"{contents.skipped} journal lines skipped as unreadable")
        write_text(out, to_t4(contents) if form == "t4" else make_table(contents, where, objective).dumps())
    else:
        raise BadInput(f"form is {form!r}: valid are {', '.join([*_OF_TABLES, *_OF_JOURNALS])}")
