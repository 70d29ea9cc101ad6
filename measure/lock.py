"""One measuring process per GPU: an advisory lock on a file named after the GPU."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from ..space import BadInput


def lock_path(uuid: str) -> Path:
    """The lock file of a GPU, the same for every user of the machine."""
    return Path(tempfile.gettempdir()) / f"tileseek-{uuid}.lock"


def acquire(uuid: str) -> int:
    """Lock the GPU; the descriptor holds the lock until it and every inherited copy of it are closed.

    A worker inherits it, so that a GPU whose supervisor was killed stays locked until its worker is gone too.

    Raises:
        BadInput: another process has it, or the lock's file cannot be opened.
    """
    path = lock_path(uuid)
    try:
        descriptor = _open(path)
    except OSError as error:
        raise BadInput(f"gpu {uuid}: cannot open its lock {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise BadInput(f"gpu {uuid}: another process measures on it ({path} is locked)") from error
    return descriptor


def _open(path: Path) -> int:
    # The mode lets every user lock; umask must not take that away.
    mask = os.umask(0)
    try:
        try:
            # In a folder like /tmp Linux may refuse O_CREAT for a file that another user made.
            return os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    finally:
        os.umask(mask)
