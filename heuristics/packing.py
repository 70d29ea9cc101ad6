"""Journals for keeping: one compressed file of what can be read of several."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..space import BadInput
from .journal import JOURNAL_VERSION, JournalContents
from .table import is_final


def pack(contents: JournalContents, target: str | Path) -> None:
    """Write what journals hold into one compressed file, which reads back the same: environments, then candidates that
    did not compile, then measures in the order they were read. Equal contents give equal bytes.

    Of screening, intervals and the clocks of single rounds are left out: nothing reads them, and they are two fifths of
    the bytes.

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
        dropped = () if is_final(measure) else ("ci95", "clocks_mhz", "rounds")
        yield {name: value for name, value in measure.raw.items() if name not in dropped}
