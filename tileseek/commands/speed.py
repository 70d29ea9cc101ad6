"""`tileseek speed`: how fast tileseek itself is on this machine. No GPU is needed."""

from __future__ import annotations

import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..heuristics.query import best_schedule
from ..heuristics.table import Table, load_table
from ..results import has_table, table_path
from ..space import DTYPE_BYTES, H200, LAYOUTS, BadInput, Problem, sample
from .inputs import AsJson, TablePath, require, whole_number
from .output import print_json, print_table, progress

REPEATS = 9

UNKNOWN = 200
DRAFTED = 40
"""Problems that are asked for and not in the table: with `quick`, and of these without."""

PROBLEM = Problem(4096, 4096, 4096)
"""Valid for nearly all schedules, so that those compiled are drawn from the whole space."""


def command(
    kernels: Annotated[
        int, typer.Option(parser=whole_number, help="Compile that many random kernels, without the cache.")
    ] = 0,
    workers: Annotated[
        int | None, typer.Option(parser=whole_number, help="Most compilers at once (default: one for each core).")
    ] = None,
    seed: Annotated[int, typer.Option(parser=whole_number, help="Seed of the kernels and of unknown problems.")] = 0,
    table: TablePath = None,
    as_json: AsJson = False,
) -> None:
    """Time tileseek itself: the import, loading a table, queries of problems in it and of unknown ones, compiling."""
    if kernels < 0:
        raise BadInput(f"--kernels is {kernels}: valid is 0 or more")
    facts: dict[str, Any] = {"import_ms": _import_ms()}
    if table is None and has_table(H200):
        table = table_path(H200)
    if table is not None:
        facts |= _query(table, seed)
    if kernels:
        facts |= _compile(kernels, workers, seed)
    if as_json:
        print_json(facts)
    else:
        print_table(["", ""], [[name, _words(value)] for name, value in facts.items()])


def _import_ms() -> float:
    """`import tileseek` in a fresh interpreter."""
    code = "import time; start = time.perf_counter(); import tileseek; print(time.perf_counter() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(REPEATS)]
    return 1e3 * statistics.median(float(run.stdout) for run in runs)


def _query(path: Path, seed: int) -> dict[str, Any]:
    """The table is read anew for every repetition, so that the first query of a problem is that every time."""
    loading, first, again, quick, unknown = [], [], [], [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        table = load_table(path)
        loading.append(time.perf_counter() - start)
        if not table.runnable:
            raise BadInput(f"the table {path} has no entry that can run: valid is one with some")
        first += _each(table.runnable, table)
        again += _each(table.runnable, table)
        # The very first has the predictor read.
        quick += _each(_unknown(table, random.Random(seed)), table, quick=True)[1:]
    unknown += _each(_unknown(table, random.Random(seed))[:DRAFTED], table)[1:]
    return {
        "table_entries": len(table.entries),
        "table_load_ms": 1e3 * statistics.median(loading),
        "first_query_us": 1e6 * statistics.median(first),
        "first_query_us_p99": 1e6 * statistics.quantiles(first, n=100)[-1],
        "next_query_us": 1e6 * statistics.median(again),
        "quick_query_us": 1e6 * statistics.median(quick),
        "quick_query_us_p99": 1e6 * statistics.quantiles(quick, n=100)[-1],
        "unknown_query_us": 1e6 * statistics.median(unknown),
        "unknown_query_us_p99": 1e6 * statistics.quantiles(unknown, n=100)[-1],
    }


def _each(problems: Iterable[Problem], table: Table, quick: bool = False) -> list[float]:
    """Seconds of a query for each problem."""
    found = []
    for problem in problems:
        start = time.perf_counter()
        best_schedule(problem, table, quick=quick)
        found.append(time.perf_counter() - start)
    return found


def _unknown(table: Table, rng: random.Random) -> list[Problem]:
    """Random problems that the table does not know, of every dtype and the layouts that it has kernels for."""
    found: dict[Problem, None] = {}
    while len(found) < UNKNOWN:
        dtype = rng.choice(list(DTYPE_BYTES))
        layout = rng.choice(LAYOUTS) if DTYPE_BYTES[dtype] == 2 else "nt"
        m, n, k = (16 * round(2 ** rng.uniform(0, 10)) for _ in "mnk")
        problem = Problem(m, n, k, dtype, layout)
        if problem not in table.by_problem:
            found[problem] = None
    return list(found)


def _compile(count: int, workers: int | None, seed: int) -> dict[str, Any]:
    require("search", "cuda.bindings")
    from ..codegen import Cache, CompilePool

    rng = random.Random(seed)
    drawn: dict[Any, None] = {}
    while len(drawn) < count:
        drawn[sample(PROBLEM, H200, rng).kernel] = None
    done = itertools.count(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        CompilePool(workers, cache=Cache(Path(folder))) as pool,
        progress("compiling", count) as advance,
    ):
        start = time.perf_counter()
        found = pool.compile_many(
            [(PROBLEM, schedule) for schedule in drawn], lambda _, kernel: advance("compiling", next(done))
        )
        seconds = time.perf_counter() - start
    each = sorted(kernel.seconds for kernel in found)
    return {
        "kernels": count,
        "kernels_accepted": sum(kernel.status == "ok" for kernel in found),
        "compilers": min(pool.size, count),
        "kernels_per_s": count / seconds,
        "seconds_per_kernel_median": statistics.median(each),
        "seconds_per_kernel_max": each[-1],
    }


def _words(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
