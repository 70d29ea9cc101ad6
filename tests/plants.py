"""Wrong kernels: generated ones with one thing spoiled. What they are called with stays the same."""

from __future__ import annotations

from collections.abc import Mapping

from tileseek.codegen.nvrtc import compile_source
from tileseek.codegen.source import generate
from tileseek.measure.results import Candidate
from tileseek.space import H200, Problem, Schedule, nearest

PROBLEM = Problem(1024, 2048, 4096)

DIRECT = nearest(
    {"arrangement": "coop", "consumers": 2, "tile_m": 128, "tile_n": 128, "tile_k": 64, "stages": 4, "store": "direct"}
    | {"split_k": 1, "cluster_m": 1, "cluster_n": 1, "mma_in_flight": 0},
    PROBLEM,
    H200,
)
SPLIT = nearest({**DIRECT.to_json(), "split_k": 4, "reduction": "slots"}, PROBLEM, H200)
"""Parts of K are added up in a workspace."""

ENTRY = 'extern "C" __global__'
BEGINNING = "  extern __shared__"
STORE = "      store_direct(accumulators"
"""Places in the generated text: before the kernel, its first line, its store (6 columns in, as in split kernels)."""

_COUNT_LAUNCHES = {
    ENTRY: f"__device__ u32 launches;\n{ENTRY}",
    BEGINNING: f"  if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(&launches, 1u);\n{BEGINNING}",
}

PLANTS: Mapping[str, tuple[Schedule, Mapping[str, str]]] = {
    "never writes": (SPLIT, {STORE: "      if (m < 0) store_direct(accumulators"}),
    "skips a part of the reduction": (
        SPLIT,
        {"int other = 1; other < work.parts": "int other = 2; other < work.parts"},
    ),
    "is wrong only at edges": (SPLIT, {"if (at >= m) continue;": "if (at >= m - (m % 64 != 0)) continue;"}),
    "accumulates in bf16": (
        SPLIT,
        {
            "      hand_back(ring.stage);\n": "      hand_back(ring.stage);\n"
            "      for (int i = 0; i < TILE_N / 2; ++i)\n"
            "        accumulators[0][i] =\n"
            "            __uint_as_float((__float_as_uint(accumulators[0][i]) + 0x8000) & 0xFFFF0000);\n"
        },
    ),
    "is wrong once in a hundred launches": (
        SPLIT,
        {**_COUNT_LAUNCHES, STORE: "      if (tile || *(volatile u32*)&launches % 100) store_direct(accumulators"},
    ),
    "writes behind the output": (
        SPLIT,
        {BEGINNING: f"  if (threadIdx.x == 0) d[(long long)m * n + 8] = 0;\n{BEGINNING}"},
    ),
    "leaves its workspace dirty": (SPLIT, {"    if (last) *counter = 0;\n": ""}),
    "is right before timing and wrong after": (
        SPLIT,
        {**_COUNT_LAUNCHES, STORE: "      if (*(volatile u32*)&launches < 320) store_direct(accumulators"},
    ),
}
"""What is wrong with each, the schedule it is made from, and what is replaced by what in its text."""


def spoiled(name: str) -> Candidate:
    """The candidate of a plant."""
    schedule, changes = PLANTS[name]
    source = generate(PROBLEM, schedule)
    text = source.text
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in the generated text"
        text = text.replace(old, new)
    compilation = compile_source(text)
    assert compilation.cubin, compilation.log
    return Candidate(schedule, compilation.cubin, source.entry, 0)
