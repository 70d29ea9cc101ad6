"""The journal: append-only JSON lines of everything measured. Tables, models and reports are derived from it.

A line is one object with `v` (format version) and `kind`:

- `env`: the facts of a machine and its software under the key `env`, which measures refer to;
- `measure`: one schedule measured on one problem under one policy;
- `compile`: a schedule that did not become an accepted kernel, with the reason.

What cannot be read is never an error: a line cut off by a crash, damaged, or written by a newer version is
skipped and counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..space import FOR_TIME, BadInput, Problem, Schedule
from ..space.generations import same_kernel
from ..space.rules import read_schedule

JOURNAL_VERSION = 1
"""Lines with a larger `v` come from a newer tileseek and are skipped."""

LEAST, MOST = 1e-4, 1e12
"""What is measured lies between, in whatever unit: statistics of other numbers may round to 0, or overflow."""

_FACTS = {"gpu", "generator", "compiler"}
"""The facts of an environment that decide what counts for a table."""


class Journal:
    """Appends lines to the file at `path`, which is made (with its folder) when missing.

    Each line is one write in append mode, so that a crash can cut off the last line and nothing else. A file
    that a crash left without its final newline gets it before the next line. With `sync` a line is on the
    disk, and not only with the operating system, when `append` returns. Writers may interleave; a run, which goes
    on from what it reads here, asks to be `alone`: no other run has the file until the journal is closed.

    Raises:
        BadInput: the file cannot be opened for writing, or another run has it.
    """

    def __init__(self, path: str | Path, sync: bool = False, alone: bool = False) -> None:
        self.path = Path(path)
        self._sync = sync
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BadInput(f"cannot write {path}: {error.strerror}") from error
        if alone:
            self._lock()
        size = os.fstat(self._file).st_size
        self._cut_off = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one object; `v` is added. Numbers that JSON does not have (nan, inf) become null.

        Raises:
            OSError: the write failed, for example because the disk is full; it names the file. What was written of the
                line is skipped by readers, and does not spoil the next.
        """
        data = f"{_dumps({'v': JOURNAL_VERSION, **line})}\n".encode()
        if self._cut_off:
            data = b"\n" + data
        self._cut_off = True
        try:
            while data:
                data = data[os.write(self._file, data) :]
            self._cut_off = False
            if self._sync:
                os.fsync(self._file)
        except OSError as error:
            error.filename = str(self.path)
            raise

    def _lock(self) -> None:
        """The lock goes with the process, however it ends. File systems without locks do without."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            folder = self.path.parent
            raise BadInput(f"the run folder {folder} is in use by another process: valid is another folder") from None
        except OSError:
            pass

    def close(self) -> None:
        """Close the file; the journal takes no more lines."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Measure:
    """One measurement. Ratios are the other's time (or cycles) over ours, paired in rounds: above 1 we are faster.

    `median_us` is the time of one call in microseconds and `times_us` that of each round; a candidate that did
    not finish has neither. A ratio that was not measured is None.
    """

    problem: Problem
    schedule: Schedule
    status: str
    median_us: float | None
    times_us: tuple[float, ...]
    ratio_to_ref: float | None
    """Time of the cuBLAS default over ours."""
    ratio_to_best: float | None
    """Time of the best cuBLASLt algorithm over ours."""
    ratio_cycles: float | None
    """Cycles of the cuBLAS default over ours."""
    env: str
    policy: str
    raw: Mapping[str, Any]
    """The whole line."""

    @property
    def energy_mj(self) -> float | None:
        """Millijoules of one call; None where energy was not measured."""
        return _positive(self.raw.get("energy_mj"))

    @property
    def ratio_energy(self) -> float | None:
        """Energy of the cuBLAS default over ours; None where energy was not measured."""
        return _positive(self.raw.get("ratio_energy"))

    @property
    def ratio_edp(self) -> float | None:
        """Energy x time of the cuBLAS default over ours."""
        if self.ratio_energy is None or self.ratio_to_ref is None:
            return None
        return self.ratio_energy * self.ratio_to_ref

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `median_us` over the rounds, its ends over `median_us`; None where it was not kept."""
        intervals = self.raw.get("ci95")
        ends = intervals.get("median_us") if isinstance(intervals, Mapping) else None
        if not isinstance(ends, list | tuple) or len(ends) != 2 or self.median_us is None:
            return None
        if not all(isinstance(end, float) or type(end) is int for end in ends):
            return None
        low, high = ends
        if not LEAST <= low <= self.median_us <= high <= MOST:
            return None
        return low / self.median_us, high / self.median_us

    @property
    def objective(self) -> str:
        """What the run that made it tuned for: the word before the colon of a policy such as `energy:screen-3fa2b1`."""
        objective, colon, _ = self.policy.partition(":")
        return objective if colon else FOR_TIME


def policy_name(key: str) -> str:
    """The name in the key of a measuring policy: `final-brief` of `energy:final-brief-56d53319ad0a`."""
    words = key.rpartition(":")[2]
    name, dash, _ = words.rpartition("-")
    return name if dash else words


def policy_family(name: str) -> str:
    """The first word of a policy's name: `final` of `final-brief`."""
    return name.partition("-")[0]


@dataclass(slots=True)
class JournalContents:
    """What journals hold: lines in the order they were read."""

    measures: list[Measure] = field(default_factory=list)
    compiles: list[Measure] = field(default_factory=list)
    """Candidates that did not become a kernel: status `compile`, `audit` or `timeout`, and no times."""
    envs: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: int = 0
    """Lines that were cut off, damaged or newer than this version."""


def read_journal(paths: str | Path | Iterable[str | Path]) -> JournalContents:
    """Read one journal or several, `*.jsonl` or packed `*.jsonl.gz`.

    Raises:
        BadInput: a file does not exist or cannot be opened.
    """
    contents = JournalContents()
    with _nothing_collected():
        for path in [paths] if isinstance(paths, str | Path) else paths:
            for line in _lines(Path(path)):
                if line is None or (line.strip() and not _take(line, contents)):
                    contents.skipped += 1
    return contents


def of_today(measures: Iterable[Measure], envs: Mapping[str, Mapping[str, Any]], generator: str) -> list[Measure]:
    """The measures made in one of the environments `envs`, of kernels that `generator` makes as the generator there
    did."""
    made_with = {key: str(env.get("generator")) for key, env in envs.items()}
    return [
        m for m in measures if m.env in made_with and same_kernel(m.problem, m.schedule, made_with[m.env], generator)
    ]


def measure_from_json(obj: Mapping[str, Any]) -> Measure:
    """The measure of a line of kind `measure` or `compile`.

    Raises:
        BadInput, KeyError, TypeError, ValueError: the object is not such a line.
    """
    measure = Measure(
        problem=_problem(**obj["problem"]),
        schedule=read_schedule(obj["schedule"]),
        status=_word(obj["status"]),
        median_us=_positive(obj.get("median_us")),
        times_us=_times(obj.get("times_us")),
        ratio_to_ref=_positive(obj.get("ratio_to_ref")),
        ratio_to_best=_positive(obj.get("ratio_to_best")),
        ratio_cycles=_positive(obj.get("ratio_cycles")),
        env=_word(obj.get("env", "")),
        policy=_word(obj.get("policy", "")),
        raw=obj,
    )
    for name in ("energy_mj", "ratio_energy", "clock_mhz", "power_w"):
        _positive(obj.get(name))  # a number, where there is one
    if measure.status == "correct" and not (measure.median_us and all(map(_positive, measure.times_us))):
        raise ValueError("a correct measure has times, and they are positive")
    return measure


@functools.lru_cache(maxsize=1024, typed=True)
def _problem(**fields: Any) -> Problem:
    """A journal names each of its problems hundreds of times."""
    return Problem.from_json(fields)


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Without garbage collection, which would look at everything read so far again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _lines(path: Path) -> Iterator[bytes | None]:
    """The lines of a file; None stands for a rest that cannot be unpacked."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (EOFError, zlib.error, gzip.BadGzipFile):
        yield None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error


def _take(line: bytes, contents: JournalContents) -> bool:
    """Add a line to `contents`; False when it cannot be used."""
    try:
        obj = _JSON.decode(line.decode("utf-8-sig"))
        if obj["v"] > JOURNAL_VERSION:
            return False
        kind = obj["kind"]
        if kind == "env":
            for name, fact in obj.items():
                if name in _FACTS or isinstance(fact, str):
                    _word(fact)
            contents.envs[_word(obj["env"])] = {k: v for k, v in obj.items() if k not in ("v", "kind", "env")}
        elif kind == "measure":
            contents.measures.append(measure_from_json(obj))
        elif kind == "compile":
            contents.compiles.append(measure_from_json(obj))
        else:
            return False
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return False
    return True


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a word")
    value.encode()  # half of a surrogate pair can be read, but neither printed nor written
    return value


def _number(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word} is not a number of JSON")
    return number


_JSON = json.JSONDecoder(parse_float=_number, parse_constant=_number)
"""Refuses NaN, Infinity and numbers too large for a float, which could not be written again."""


def _times(value: object) -> tuple[float, ...]:
    if value is not None and not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is not a list of times")
    return tuple(map(float, value or ()))


def _positive(value: Any) -> float | None:
    """A time or a ratio; None for what a candidate that failed has in its place, or for what nobody measured."""
    number = float(value or 0)
    return number if LEAST <= number <= MOST else None


def _dumps(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
