"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..space import BadInput

_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
"""Words stand as they are: `tileseek[search]` is no markup."""

notes = Console(stderr=True, soft_wrap=True, **_PLAIN)
"""For what is not the result: progress, warnings, counts."""

_COLUMNS = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def dumps_json(document: object) -> str:
    """A JSON document as text."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def print_json(document: object) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(dumps_json(document))


@contextlib.contextmanager
def progress(what: str, total: float, lines: bool = False) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr; the function it gives says what is done and how far it is, of `total`. Where stderr is no
    terminal there is no bar; with `lines` there is then a line whenever something else is done."""
    if lines and not notes.is_terminal:
        before = ""

        def tell(now: str, completed: float) -> None:
            nonlocal before
            if now != before:
                notes.print(f"{what}: {now}, {completed:g} done before")
            before = now

        yield tell
        return
    with Progress(*_COLUMNS, console=notes, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda now, completed: bar.update(task, description=now, completed=completed)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout, as wide as it needs to be when stdout is not a terminal. No words in the header: none."""
    table = Table(*header, box=None, pad_edge=False, header_style="bold", show_header=any(header))
    for row in rows:
        table.add_row(*row)
    console = Console(**_PLAIN)
    if not console.is_terminal:
        console.width = 1000
    with console.capture() as capture:
        console.print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def command_line() -> str:
    """The command that is running, as it could be typed again."""
    return shlex.join(["tileseek", *sys.argv[1:]])


def deliver(document: Mapping[str, Any], out: Path | None, as_json: bool, show: Callable[[Any], None]) -> None:
    """Write a document to the file `out` where one is given, then it itself to stdout, or what `show` prints of it.

    Raises:
        BadInput: the file cannot be written.
    """
    if out is not None:
        write_text(out, dumps_json(document))
    if as_json:
        print_json(document)
    else:
        show(document)


def stop_early(stopped: str | None, after: str) -> None:
    """End a command that was stopped `after` so much: by Ctrl-C, without words, or by a failure. None goes on.

    Raises:
        typer.Exit: it was stopped.
    """
    if stopped is not None:
        notes.print(f"{after}{stopped and ': ' + stopped}")
        raise typer.Exit(1 if stopped else 130)


def check_writable(path: Path) -> None:
    """Make sure, before long work, that its result can be written. A file that is there stays as it is.

    Raises:
        BadInput: it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from error


def write_text(path: Path | None, text: str) -> None:
    """Write to a file, or to stdout without one.

    Raises:
        BadInput: the file cannot be written.
    """
    if path is None:
        sys.stdout.write(text)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from error
