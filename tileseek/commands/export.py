"""`tileseek export`: a table in the form another tool reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..api import load_table
from ..heuristics.export import left_out, to_csv, to_inductor, to_nvfuser, to_t4
from ..heuristics.journal import JournalContents
from ..heuristics.packing import pack
from ..results import journal_path
from ..space import FOR_TIME, H200, BadInput, find_device, shown
from ..tables import make_table
from .inputs import TablePath, check_objective, read_journals, require
from .output import check_writable, notes, write_text

_OF_TABLES = {"csv": to_csv, "inductor": to_inductor, "nvfuser": to_nvfuser}
_OPTIONS = {
    **dict.fromkeys(_OF_TABLES, ("table",)),
    "table": ("journal", "device", "objective"),
    "t4": ("journal", "device"),
    "journal": ("journal", "device"),
}
"""What each form is made of, by the options that say it."""


def command(
    form: Annotated[str, typer.Argument(metavar="FORM", help="csv, inductor, nvfuser, table, t4 or journal.")],
    table: TablePath = None,
    journal: Annotated[
        list[Path] | None, typer.Option(help="Journal for table, t4 and journal (default: bundled); may be repeated.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device class of a table, or of the bundled journal (default: H200).")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="What a table is tuned for: time (default), energy, or edp, their product.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write (default: stdout).")] = None,
) -> None:
    """Write a table (csv, inductor, nvfuser) in the form another tool reads, make a table or T4 of journals, or pack
    several journals into one for keeping (journal)."""
    if form not in _OPTIONS:
        raise BadInput(f"form is {shown(form)}: valid are {', '.join(_OPTIONS)}")
    _check_options(form, table=table, journal=journal, device=device, objective=objective)
    if form in _OF_TABLES:
        source = load_table(table)
        write_text(out, _OF_TABLES[form](source))
        reasons = left_out(form, source)
        if reasons:
            counts = ", ".join(f"{count} because {reason}" for reason, count in reasons.most_common())
            total = len(source.entries)
            notes.print(f"exported {total - reasons.total()} of {total} entries; left out: {counts}")
    else:
        where = find_device(H200.name if device is None else device)
        tuned_for = check_objective(FOR_TIME if objective is None else objective)
        if form == "table":
            require("search", "numpy", "sklearn")
        packed = _packed(out) if form == "journal" else None
        contents = read_journals(journal or [journal_path(where)])
        if packed is not None:
            _pack(contents, packed)
            return
        write_text(out, to_t4(contents) if form == "t4" else make_table(contents, where, tuned_for).dumps())


def _packed(out: Path | None) -> Path:
    """Where the journal goes.

    Raises:
        BadInput: nowhere, or to a name by which nobody would know that it is packed.
    """
    if out is None:
        raise BadInput("export journal without --out: valid is the name of a file, such as kept.jsonl.gz")
    if out.suffix != ".gz":
        raise BadInput(f"--out is {out}: valid is a name that ends in .gz, by which a packed journal is known")
    check_writable(out)
    return out


def _pack(contents: JournalContents, out: Path) -> None:
    pack(contents, out)
    notes.print(f"packed {len(contents.measures) + len(contents.compiles)} measurements")


def _check_options(form: str, **options: object) -> None:
    """Refuse what the form is not made of.

    Raises:
        BadInput: such an option was given.
    """
    given = [name for name, value in options.items() if value not in (None, [])]
    for name in given:
        if name not in _OPTIONS[form]:
            valid = ", ".join(f"--{option}" for option in _OPTIONS[form])
            raise BadInput(f"--{name} means nothing to export {form}: valid are {valid}, --out")
    if form in ("t4", "journal") and {"journal", "device"} <= set(given):
        raise BadInput(
            f"--device chooses a bundled journal for export {form}: valid is --device or --journal, not both"
        )
