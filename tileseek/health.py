"""What is well and what is not on a machine, each finding with what to do about it."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .codegen.cache import Cache
from .codegen.source import GENERATOR_VERSION
from .cost_model.predictor import Predictor
from .heuristics.journal import Measure, read_journal
from .heuristics.table import Table
from .measure import lock
from .measure.conditions import BRAKES
from .measure.gpus import Gpu
from .measure.nvml import Reading
from .space import BadInput
from .space.generations import same_kernel

LEAST_FREE_SHARE = 0.9
"""Of a GPU's memory: large problems need most of it, and who holds the rest may use the GPU too."""

LEAST_DISK_BYTES = 2**30

CHECKED_KERNELS = 2000
"""Kernels of the cache that are read, at most."""

CLOCKS_SET = 0x02
"""NVML's clock event reason: somebody has set application clocks."""

HOT_C = 85


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` is empty where nothing needs to be done."""

    about: str
    detail: str
    advice: str = ""

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return not self.advice


class Board(Protocol):
    """What NVML says of a GPU (`measure.nvml.Nvml`)."""

    def read(self) -> Reading: ...
    def driver(self) -> str: ...
    def compute_processes(self) -> int: ...
    def free_bytes(self) -> int: ...
    def max_sm_mhz(self) -> int: ...
    def power_limit_w(self) -> float: ...


def check_gpu(gpu: Gpu, board: Board) -> Iterator[Finding]:
    """Driver, exclusive use, free memory and clocks of one GPU."""
    yield Finding(f"GPU {gpu.index}: driver", f"{board.driver()}, {gpu.name}")
    yield _exclusive(gpu, board)
    free = board.free_bytes()
    yield Finding(
        f"GPU {gpu.index}: memory",
        f"{free / 2**30:.1f} of {gpu.memory / 2**30:.1f} GiB free",
        "" if free >= LEAST_FREE_SHARE * gpu.memory else "end what holds the rest: `nvidia-smi` lists it",
    )
    yield _clocks(gpu, board)


def _exclusive(gpu: Gpu, board: Board) -> Finding:
    about = f"GPU {gpu.index}: use"
    try:
        os.close(lock.acquire(gpu.uuid))
    except BadInput as error:
        return Finding(about, str(error), "wait until it is done: one process measures on a GPU at a time")
    others = board.compute_processes()
    if others:
        return Finding(
            about, f"{others} processes compute on it", "end them before measuring: they share its clock and its memory"
        )
    return Finding(about, "nobody else uses it")


def _clocks(gpu: Gpu, board: Board) -> Finding:
    now = board.read()
    advice = []
    if now.throttle & BRAKES:
        advice.append("it is slowed down by heat or a power brake: see to its cooling and supply before measuring")
    elif now.temperature_c >= HOT_C:
        advice.append("it is hot: let it cool down before measuring")
    if now.throttle & CLOCKS_SET:
        advice.append("somebody has set its clocks: `nvidia-smi -rac` and `nvidia-smi -rgc` give them back")
    if board.max_sm_mhz() < gpu.device.max_clock_mhz:
        advice.append(f"its clock ends at {board.max_sm_mhz()} MHz, of {gpu.device.max_clock_mhz}: times are its own")
    detail = f"{now.sm_mhz} MHz now, {now.temperature_c} C, {now.power_w:.0f} of {board.power_limit_w():.0f} W"
    return Finding(f"GPU {gpu.index}: clocks", detail, "; ".join(advice))


def check_compiler(compiler: str, table: Table) -> Iterator[Finding]:
    """Whether the times of a table are of the kernels that this installation makes. No words for the compiler: none is
    installed."""
    if not compiler:
        yield Finding("compiler", "not installed", "install tileseek[search] to compile; queries need none")
    else:
        yield Finding("compiler", f"{compiler}, generator {GENERATOR_VERSION}")
    if not table.entries:
        return
    retune = "those times are stale: tune again, or use what it was measured with"
    if compiler not in ("", table.compiler):
        yield Finding("table", f"measured with {table.compiler}, here is {compiler}", retune)
    changed = sum(
        not same_kernel(entry.problem, entry.schedule, table.generator, GENERATOR_VERSION) for entry in table.entries
    )
    if changed:
        kernels = f"{changed} of {len(table.entries)} kernels are others since generator {table.generator}"
        yield Finding("table", kernels, retune)
    if table.skipped:
        yield Finding("table", f"{table.skipped} entries cannot be read", "make it again: `tileseek export table`")
    if table.predictor is not None:
        try:
            Predictor.from_json(table.predictor, table.device)
        except BadInput as error:
            yield Finding(
                "table", str(error), "make it again: `tileseek export table`; until then the nearest problem answers"
            )


def check_cache(cache: Cache) -> Iterator[Finding]:
    """Kernels, damage and free space of the kernel cache."""
    keys = cache.keys()
    for key in keys[:CHECKED_KERNELS]:
        cache.get(key)
    looked = min(len(keys), CHECKED_KERNELS)
    yield Finding(
        "cache",
        f"{cache.directory}: {len(keys)} kernels, {len(cache.corrupt)} of {looked} damaged",
        "nothing is lost, they are compiled again; delete the folder to be rid of them" if cache.corrupt else "",
    )
    free = shutil.disk_usage(cache.directory).free
    yield Finding(
        "cache: space",
        f"{free / 2**30:.1f} GiB free",
        "" if free >= LEAST_DISK_BYTES else "make room, or set TILESEEK_CACHE: kernels that cannot be kept are lost",
    )
    if not os.access(cache.directory, os.W_OK):
        yield Finding("cache", f"{cache.directory} cannot be written", "set TILESEEK_CACHE to a folder of your own")


def check_journal(path: Path, compiler: str) -> Iterator[Finding]:
    """Lines of a journal that cannot be read, and times that this installation would not measure again.

    Raises:
        BadInput: it cannot be opened.
    """
    contents = read_journal(path)
    lines = len(contents.measures) + len(contents.compiles)
    yield Finding(
        f"journal {path}",
        f"{lines} results in {len(contents.envs)} environments, {contents.skipped} lines unreadable",
        "they were cut off by a crash or are of a newer version; they are left out, and measured again by the same"
        " command"
        if contents.skipped
        else "",
    )
    old: list[Measure] = []
    fresh: list[Measure] = []
    for measure in contents.measures:
        (old if _is_stale(measure, contents.envs, compiler) else fresh).append(measure)
    if old:
        tools = Counter(_made_by(measure, contents.envs) for measure in old)
        counts = ", ".join(f"{count} of generator {' with '.join(pair)}" for pair, count in sorted(tools.items()))
        alone = {measure.problem for measure in old} - {measure.problem for measure in fresh}
        yield Finding(
            f"journal {path}",
            f"stale here: {counts}; they teach the model still",
            f"{len(alone)} of its problems have no times of today: tune them again" if alone else "",
        )


def _is_stale(measure: Measure, envs: Mapping[str, Mapping[str, Any]], compiler: str) -> bool:
    """Whether a measure is of another kernel than this installation makes. With no compiler installed the generator
    alone counts."""
    generator, made_with = _made_by(measure, envs)
    of_today = same_kernel(measure.problem, measure.schedule, generator, GENERATOR_VERSION)
    return compiler not in ("", made_with) or not of_today


def _made_by(measure: Measure, envs: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """The generator and the compiler of a measure."""
    env = envs.get(measure.env, {})
    return str(env.get("generator", "unknown")), str(env.get("compiler", "unknown"))
