"""The walk of the generated kernels, compiled for the CPU from their own text: the same tiles as the host's, and with
shared K every k-block once, every part in a slot of its own."""

from __future__ import annotations

import ctypes
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import native
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tileseek.codegen import walk
from tileseek.space import Problem, Schedule, TileGrid, tile_position
from tileseek.space.rules import HANDS

SPLIT = Schedule.parse("coop1_64x64x128_s5_w0_c1x1_tile_rm1_reg0-0_tma16x2_k4_slots")
WHOLE = Schedule.parse("coop1_64x64x128_s5_w0_c1x1_pall_rm1_reg0-0_tma16x2")
SINGLE, BATCHED = Problem(64, 64, 64), Problem(64, 64, 64, batch=2)
STREAM = Schedule.parse("coop1_64x64x128_s5_w0_c1x1_pall_rm1_reg0-0_tma16x2_sk_slots")
WORK_FIELDS = ("tile", "first_block", "k_blocks", "part", "parts", "slot", "next_slot")

HOST = """
#include <algorithm>
using std::min; using std::max;
#define __device__
#define __forceinline__ inline
typedef unsigned int u32;
typedef unsigned long long u64;
constexpr int SPLIT_K = 4;
"""
POSITION = 'extern "C" void position(int index, const Walk* w, int* out) { auto p = tile_position(index, *w);'
POSITIONS = {
    False: POSITION + " out[0] = p.m; out[1] = p.n; out[2] = 0; }",
    True: POSITION + " out[0] = p.m; out[1] = p.n; out[2] = p.batch; }",
}
EXPORTS = {
    "unit": 'extern "C" void unit(int u, int w, int ws, int t, int b, int* out) { auto x = work(u, w, ws, t, b);'
    + "".join(f" out[{i}] = x.{name};" for i, name in enumerate(WORK_FIELDS))
    + " }",
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("walk")
    libraries = {}
    for name, problem, schedule in (
        ("split", SINGLE, SPLIT),
        ("stream", SINGLE, STREAM),
        ("in turn", SINGLE, replace(SPLIT, interleave_k=True)),
        ("apart", SINGLE, replace(SPLIT, parts_apart=True)),
        ("batched", BATCHED, SPLIT),
    ):
        exports = [POSITIONS[problem.batched], *EXPORTS.values()]
        source = "\n".join([HOST, *walk.functions(problem, schedule), *exports])
        libraries[name] = native.library(source, folder, name)
    return libraries


@settings(max_examples=200, deadline=None)
@given(d=st.integers(1, 2**31 - 1), n=st.integers(0, 2**31 - 1))
def test_division_by_multiplication_is_exact(d: int, n: int) -> None:
    factor, shift = walk.divisor(d)
    assert factor < 2**32
    for value in (n, n // d * d, max(0, n // d * d - 1)):
        assert value * factor >> shift == value // d


@settings(max_examples=60, deadline=None)
@given(
    tiles_m=st.integers(1, 40),
    tiles_n=st.integers(1, 40),
    raster=st.sampled_from("mn"),
    swizzle=st.sampled_from((1, 2, 4, 8, 16, 32)),
    serpentine=st.booleans(),
    batch=st.integers(1, 5),
)
def test_kernel_walks_as_the_host_says(
    compiled: dict[str, ctypes.CDLL],
    tiles_m: int,
    tiles_n: int,
    raster: str,
    swizzle: int,
    serpentine: bool,
    batch: int,
) -> None:
    schedule = replace(SPLIT, raster=raster, swizzle=swizzle, serpentine=serpentine)
    values = walk.values(TileGrid(tiles_m, tiles_n, 1, 1, 1, batch), schedule)
    arguments = (ctypes.c_int * len(values))(*values)
    kernel = compiled["batched" if batch > 1 else "split"]
    out = (ctypes.c_int * 3)()
    for index in range(tiles_m * tiles_n * batch):
        kernel.position(index, arguments, out)
        assert tuple(out) == tile_position(index, tiles_m, tiles_n, raster, swizzle, serpentine)


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """`first<HANDS>(block, blocks)` is where the CTA of that number begins."""
    host = "typedef unsigned u32; static u32 min(u32 a, u32 b) { return a < b ? a : b; } struct Dim { u32 x; };"
    functions = [
        f'extern "C" int first{hands}(u32 block, u32 blocks) {{ Dim blockIdx{{block}}, gridDim{{blocks}};\n'
        + "\n".join(walk.places(replace(WHOLE, hands=hands), "1"))
        + "\n(void)tile_step; return first_tile; }"
        for hands in HANDS
    ]
    return native.library("\n".join([host, *functions]), tmp_path_factory.mktemp("dealt"), "dealt")


@pytest.mark.parametrize("hands", HANDS)
def test_ctas_begin_at_all_places_and_those_of_a_gpc_apart(dealt: ctypes.CDLL, hands: int) -> None:
    for blocks in (*range(1, 150), 1000):
        places = [getattr(dealt, f"first{hands}")(block, blocks) for block in range(blocks)]
        assert sorted(places) == list(range(blocks))
        if hands > 1 and blocks >= 16:
            assert all(abs(a - b) >= blocks // hands - 1 for a, b in pairwise(places))


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(("split", "stream", "in turn", "apart")),
    workers=st.integers(1, 40),
    tiles=st.integers(1, 90),
    all_blocks=st.integers(4, 70),
)
def test_shared_k_covers_every_block_once(
    compiled: dict[str, ctypes.CDLL], kind: str, workers: int, tiles: int, all_blocks: int
) -> None:
    assume(kind != "stream" or tiles * all_blocks >= workers)  # the rules refuse shares of nothing
    blocks: Counter[tuple[int, int]] = Counter()
    parts: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    out = (ctypes.c_int * len(WORK_FIELDS))()
    for worker in range(workers):
        for unit in range(10**6):
            compiled[kind].unit(unit, worker, workers, tiles, all_blocks, out)
            work = dict(zip(WORK_FIELDS, out, strict=True))
            if work["tile"] < 0:
                break
            assert work["k_blocks"] > 0
            stride = SPLIT.split_k if kind == "in turn" else 1
            blocks.update((work["tile"], work["first_block"] + stride * i) for i in range(work["k_blocks"]))
            step = 2 if kind == "stream" else 1
            slot = work["slot"] if work["part"] == 0 else work["next_slot"] + (work["part"] - 1) * step
            assert work["part"] not in parts[work["tile"]]
            parts[work["tile"]][work["part"]] = (work["parts"], slot)
    assert blocks == Counter((tile, block) for tile in range(tiles) for block in range(all_blocks))
    for found in parts.values():
        assert {count for count, _ in found.values()} == {len(found)}
        assert set(found) == set(range(len(found)))
    slots = [slot for found in parts.values() if len(found) > 1 for _, slot in found.values()]
    assert len(set(slots)) == len(slots)
    most = 2 * workers if kind == "stream" else 4 * tiles
    assert all(0 <= slot < most for slot in slots)
