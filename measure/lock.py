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
        BadInput: another process has it.
    """
    path = lock_path(uuid)
    # The mode lets every user lock; umask must not take that away.
    mask = os.umask(0)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    finally:
        os.umask(mask)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise BadInput(f"gpu {uuid}: another process measures on it ({path} is locked)") from error
    return descriptor
