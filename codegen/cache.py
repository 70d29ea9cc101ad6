"""A directory of compiled kernels, shared by any number of processes.

An entry is two files named by a key: the cubin, and a JSON record that describes it and is written last. The record
carries a digest of both, so that whatever a crash, a full disk or another program left behind reads as a miss.
A failure is an entry as well: a record without a cubin.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..space import BadInput

FORMAT_VERSION = 1
LOCK_POLL_S = 0.02


def cache_dir() -> Path:
    """Where kernels are kept: `$TILESEEK_CACHE`, or `tileseek` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if chosen := os.environ.get("TILESEEK_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tileseek"


def content_key(*parts: str) -> str:
    """A key that differs whenever any of `parts` does: 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known about a key: a cubin (empty for a failure) and a JSON object."""

    cubin: bytes
    record: Mapping[str, Any]


class Cache:
    """Entries under `directory` (default: `cache_dir()`), which is made when missing.

    Raises:
        BadInput: the directory cannot be made or written.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = Path(directory) if directory is not None else cache_dir()
        self.corrupt: set[str] = set()
        """Keys of the damaged entries met so far; each was taken as a miss."""
        self.write_errors = 0
        """Entries that could not be written, for lack of space for example."""
        try:
            for name in ("kernels", "locks"):
                (self.directory / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"cache directory {self.directory} cannot be used: {error.strerror}") from error

    def get(self, key: str) -> Entry | None:
        """The entry of `key`; None when there is none, or a damaged one."""
        record_path, cubin_path = self._paths(key)
        try:
            text = record_path.read_bytes()
        except OSError:
            return None
        try:
            outer = json.loads(text)
            record = outer["record"]
            cubin = cubin_path.read_bytes() if outer["cubin"] else b""
            if outer["v"] != FORMAT_VERSION or outer["digest"] != _digest(key, record, cubin):
                raise ValueError("digest")
        except (OSError, ValueError, KeyError, TypeError):
            self.corrupt.add(key)
            return None
        return Entry(cubin, record)

    def keys(self) -> list[str]:
        """The keys of all entries, the damaged ones included, in order."""
        return sorted(path.stem for path in (self.directory / "kernels").glob("*/*.json") if path.stem[:1] != ".")

    def put(self, key: str, entry: Entry) -> None:
        """Store `entry`, replacing what is there. Readers see the old entry, a miss, or the new one, never a part."""
        record_path, cubin_path = self._paths(key)
        record = dict(entry.record)
        outer = {
            "v": FORMAT_VERSION,
            "cubin": bool(entry.cubin),
            "digest": _digest(key, record, entry.cubin),
            "record": record,
        }
        try:
            record_path.parent.mkdir(exist_ok=True)
            if entry.cubin:
                _write(cubin_path, entry.cubin)
            _write(record_path, json.dumps(outer, sort_keys=True).encode())
        except OSError:
            # The cache saves work; a kernel that cannot be kept is still a kernel.
            self.write_errors += 1

    @contextmanager
    def lock(self, key: str, patience_s: float) -> Iterator[None]:
        """Hold the lock of `key`, so that one process compiles while the others wait for its entry.

        After `patience_s` the body runs without the lock: compiling twice is wasteful, not wrong, and a holder
        that hangs must not hang everybody. The lock goes with the process that holds it.
        """
        # Keys share 4096 lock files: as many as never need to be cleaned up, and so many that two rarely meet.
        try:
            file = open(self.directory / "locks" / key[:3], "ab")  # noqa: SIM115 - closed below, which unlocks it
        except OSError:
            yield  # a cache that can only be read
            return
        with file:
            deadline = time.monotonic() + patience_s
            while not _try_lock(file.fileno()) and time.monotonic() < deadline:
                time.sleep(LOCK_POLL_S)
            yield

    def _paths(self, key: str) -> tuple[Path, Path]:
        folder = self.directory / "kernels" / key[:2]
        return folder / f"{key}.json", folder / f"{key}.cubin"


def _digest(key: str, record: Mapping[str, Any], cubin: bytes) -> str:
    return content_key(key, json.dumps(record, sort_keys=True), hashlib.sha256(cubin).hexdigest())


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, even after a power failure."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
