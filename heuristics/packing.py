"""Journals for keeping: one compressed file of what can be read of several."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..space import BadInput
from .journal import JOURNAL_VERSION, JournalContents, Measure
from .table import is_final


def pack(contents: JournalContents, target: str | Path) -> None:
    """Write what journals hold into one compressed file, which reads back as good as the same: environments, then
    candidates that did not compile, then measures in the order they were read. Equal contents give equal bytes.

    Of screening, intervals and the clocks of single rounds are left out: nothing reads them, and they are two fifths of
    the bytes. Its numbers are kept to five digits, times of single rounds and errors of results to three: they scatter
    by as much.

    Raises:
        BadInput: the file cannot be written.
    """
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in _lines(contents))
    try:
        Path(target).write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error.strerror}") from error


def _lines(contents: JournalContents) -> Iterator[dict[str, Any]]:
    for key, env in contents.envs.items():
        yield {"v": JOURNAL_VERSION, "kind": "env", "env": key, **env}
    for measure in [*contents.compiles, *contents.measures]:
        yield dict(measure.raw) if is_final(measure) else _screened(measure)


def _screened(measure: Measure) -> dict[str, Any]:
    line = {name: value for name, value in measure.raw.items() if name not in ("ci95", "clocks_mhz", "rounds")}
    line |= {name: _rounded(value, 5) for name, value in line.items() if isinstance(value, float)}
    if measure.times_us:
        line["times_us"] = [_rounded(time, 3) for time in measure.times_us]
    if isinstance(check := line.get("check"), dict):
        errors = {name: _rounded(value, 3) for name, value in check.items() if isinstance(value, float)}
        line["check"] = check | errors
    return line


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
