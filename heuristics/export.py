"""A table or a journal in the forms that other tools read. Every function returns text."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from ..space import DTYPE_BYTES, FOR_EDP, GEMV, Problem, Schedule
from ..space.problem import MATRICES
from .journal import JournalContents, Measure
from .table import Entry, Table

_TORCH_DTYPE = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
_CSV_PROBLEM = tuple(field.name for field in fields(Problem))
_of_problem = attrgetter(*_CSV_PROBLEM)
_PRECISION = {"bf16": "T", "fp16": "H", "fp32": "S"}
_T4_INVALIDITY = {
    "correct": "correct",
    "compile": "compile",
    "audit": "compile",
    "runtime": "runtime",
    "memory": "runtime",
    "timeout": "timeout",
    "constraints": "constraints",
    "correctness": "correctness",
    "implausible": "correctness",
}


def to_csv(table: Table) -> str:
    """One row for each problem, for spreadsheets."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_CSV_PROBLEM, "schedule", "median_us", "noise", "vs_cublas", "vs_cublaslt_best", "n_measured"])
    for entry in table.entries:
        times = (entry.median_us, entry.noise, entry.vs_cublas, entry.vs_cublaslt_best, entry.n_measured)
        writer.writerow([*_of_problem(entry.problem), entry.schedule.name, *times])
    return out.getvalue()


def left_out(form: str, table: Table) -> Counter[str]:
    """The reasons why entries of `table` are not in the export to `form`, counted. CSV has them all."""
    obstacle = _OBSTACLES.get(form, lambda _: "")
    return Counter(filter(None, map(obstacle, table.entries)))


def to_inductor(table: Table) -> str:
    """The dictionary that `torch._inductor.config.lookup_table.table` takes, as JSON.

    Keys are for `mm` on this device. Values are the tiles, stages and grouping of the winner and its alternates
    for Inductor's persistent TMA template: hints, since its kernels are not these. What that template cannot
    express is left out (tiles that are not powers of two, split-K, swapped operands), and so are problems with
    nothing else, and those that `mm` does not know apart from the plain one: batches, rows with padding, an overlap
    or an epilogue.
    """
    device = table.device.aliases[0]
    found = {}
    for entry in table.entries:
        if not _inductor_obstacle(entry):
            configs = [_inductor_config(entry.problem, s) for s in entry.schedules if _in_triton(s)]
            found[f"{device}+{_inductor_inputs(entry.problem)}+mm"] = _distinct(configs)
    return _pretty(found)


def to_nvfuser(table: Table) -> str:
    """What nvFuser's matmul heuristic plugin is asked (`problem`) and answers (`config`, a KernelConfig), as JSON.

    `layout` is counted the plugin's way: 2 when A is contiguous in M, plus 1 when B is contiguous in N. The warp
    tile is that of a warpgroup. nvFuser cannot swap operands: the best schedule that does not is taken, and a
    problem without one is left out. So is one with operands that a batch shares, rows with padding, an overlap or an
    epilogue, which the plugin is not told of.
    """
    found = []
    for entry in table.entries:
        if not _nvfuser_obstacle(entry):
            plain = next(s for s in entry.schedules if _in_nvfuser(s))
            found.append({"problem": _nvfuser_problem(entry.problem), "config": _nvfuser_config(plain)})
    return _pretty(found)


def to_t4(contents: JournalContents) -> str:
    """Everything measured in the auto-tuning community's T4 results format, version 1.0.0, as JSON."""
    measures = [*contents.compiles, *contents.measures]
    return _pretty({"schema_version": "1.0.0", "results": [_t4_result(measure) for measure in measures]})


def _not_plain(problem: Problem) -> str:
    if problem.overlap != "none":
        return "the form has no overlap"
    if DTYPE_BYTES[problem.dtype] == 1:
        return "the form says nothing of how 8-bit products are summed"
    if problem.deterministic:
        return "the form has no promise to be deterministic"
    if problem.broadcast:
        return "the form has no operands that a batch shares"
    if any(getattr(problem, f"{matrix}_align") for matrix in MATRICES):
        return "the form has no alignments of rows"
    return "the form has no epilogue" if problem.epilogue != "none" else ""


def _inductor_obstacle(entry: Entry) -> str:
    known = any(map(_in_triton, entry.schedules))
    if entry.problem.out_dtype != entry.problem.dtype:
        return "the form has no output types"
    if entry.problem.batched:
        return "the form has no batches"
    return _not_plain(entry.problem) or ("" if known else "every schedule has odd tiles, splits K or swaps operands")


def _nvfuser_obstacle(entry: Entry) -> str:
    known = any(map(_in_nvfuser, entry.schedules))
    return _not_plain(entry.problem) or ("" if known else "every schedule swaps operands or has no tensor cores")


_OBSTACLES: Mapping[str, Callable[[Entry], str]] = {"inductor": _inductor_obstacle, "nvfuser": _nvfuser_obstacle}
"""Why a form leaves an entry out; no words when it does not."""


def _inductor_inputs(p: Problem) -> str:
    dtype = _TORCH_DTYPE[p.dtype]
    a = [p.k, 1] if p.a_major == "k" else [1, p.m]
    b = [p.n, 1] if p.b_major == "n" else [1, p.k]
    return f"(({dtype}, {[p.m, p.k]}, {a}), ({dtype}, {[p.k, p.n]}, {b}))"


def _inductor_config(p: Problem, s: Schedule) -> dict[str, Any]:
    return {
        "template_id": "triton::mm_persistent_tma",
        "BLOCK_M": s.tile_m,
        "BLOCK_N": s.tile_n,
        "BLOCK_K": s.tile_k,
        "GROUP_M": s.swizzle if s.raster == "m" else 1,
        "EVEN_K": p.k % s.tile_k == 0,
        "ACC_TYPE": "tl.float32",
        "num_stages": s.stages,
        "num_warps": 4 * s.warpgroups_per_tile,
    }


def _in_triton(s: Schedule) -> bool:
    powers = all(size & (size - 1) == 0 for size in (s.tile_m, s.tile_n, s.tile_k))
    return powers and s.split_k == 1 and not s.swap_ab and s.arrangement != GEMV


def _in_nvfuser(s: Schedule) -> bool:
    return not s.swap_ab and s.arrangement != GEMV


def _nvfuser_problem(p: Problem) -> dict[str, Any]:
    return {
        "m": p.m,
        "n": p.n,
        "k": p.k,
        "batch_size": p.batch,
        "layout": 2 * (p.a_major == "m") + (p.b_major == "n"),
        "precision": f"{_PRECISION[p.dtype]}S{_PRECISION[p.out_dtype]}",
    }


def _nvfuser_config(s: Schedule) -> dict[str, Any]:
    return {
        "cta_tile": [s.tile_m, s.tile_n, s.tile_k],
        "warp_tile": [64 * s.m64_per_warpgroup, s.tile_n, s.tile_k],
        "instruction_tile": [64, s.tile_n, 16],
        "cluster_dims": [s.cluster_m, s.cluster_n, 1],
        "splitk_factor": s.split_k,
        "load_stages": s.stages,
        "prefetch_gap": s.mma_in_flight + 1,
        "grid_swizzle_factor": s.swizzle,
        "cta_order": 0 if s.raster == "m" else 1,
        "circular_buffer_smem_read": False,
        "async_gmem_load_operands": True,
    }


def _t4_result(measure: Measure) -> dict[str, Any]:
    measurements = [
        {"name": name, "value": value, "unit": unit}
        for name, value, unit in (
            ("time", None if measure.median_us is None else measure.median_us / 1000, "ms"),
            ("ratio_to_cublas", measure.ratio_to_ref, ""),
            ("clock", measure.raw.get("clock_mhz"), "MHz"),
            ("power", measure.raw.get("power_w"), "W"),
            ("energy", measure.energy_mj, "mJ"),
        )
        if value is not None
    ]
    return {
        "timestamp": measure.raw.get("t"),
        "configuration": {**measure.problem.to_json(), **measure.schedule.to_json()},
        "times": {"runtimes": [time / 1000 for time in measure.times_us]},
        "invalidity": _T4_INVALIDITY.get(measure.status, "runtime"),
        "correctness": int(measure.status == "correct"),
        "measurements": measurements,
        "objectives": ["energy", "time"] if measure.objective == FOR_EDP else [measure.objective],
    }


def _distinct(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [config for i, config in enumerate(configs) if config not in configs[:i]]


def _pretty(value: object) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
