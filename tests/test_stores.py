"""Pieces of D on their way through shared memory, the generated functions compiled for the CPU: every element where the
swizzle of its tensor map has it, and no two of one store in the same bank."""

from __future__ import annotations

import ctypes
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import native
import numpy as np
import pytest
from tileseek.codegen import launch_plan, stores
from tileseek.space import OUT_DTYPE_BYTES, Problem, Schedule

MOST = 64
"""More stores than a thread has for one piece."""

HOST = """
#include <cmath>
#include <cstring>
#define __device__
#define __forceinline__ inline
typedef unsigned int u32;
static unsigned char* memory;
static u32 (*log_)[2];
static int stored;
template <class T> void store(u32 target, T value) {
  std::memcpy(memory + target, &value, sizeof(T));
  log_[stored][0] = target;
  log_[stored++][1] = sizeof(T);
}
struct Pair { float first, second; };
inline void store_pair(u32 target, float first, float second) { store(target, Pair{first, second}); }
inline void store_pair(u32 target, unsigned short two) { store(target, two); }
inline void store_float(u32 target, float value) { store(target, value); }
inline void store_byte(u32 target, u32 value) { store(target, (unsigned char)value); }
inline void proxy_fence() {}
inline unsigned short pack(float low, float high) {
  return (unsigned char)low | (unsigned char)high << 8;
}
"""

RUN = """
template <int WIDTH> int run(unsigned char* chunk, u32* log, const float* d) {
  memory = chunk;
  for (int thread = 0; thread < 128; ++thread) {
    log_ = (u32 (*)[2])(log + thread * MOST * 2);
    stored = 0;
    stage_piece<WIDTH, WIDTH>(*(const float (*)[WIDTH])(d + thread * WIDTH), 0, thread);
  }
  return stored;
}
extern "C" int stage(int width, unsigned char* chunk, u32* log, const float* d) {
  switch (width) {
    case 8: return EIGHT;
    case 16: return run<16>(chunk, log, d);
    case 32: return run<32>(chunk, log, d);
    default: return run<64>(chunk, log, d);
  }
}
"""

SCHEDULE = Schedule.parse("coop1_64x128x128_s2_w0_c1x1_pall_rm1_reg0-0_tma16x1")


@dataclass(frozen=True)
class Staged:
    """A chunk after staging the second piece of a 64-row block, whose element (row, column) is `row * 64 + column`."""

    memory: np.ndarray
    log: np.ndarray
    """(thread, store) -> address, bytes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


def staged(folder: Path, out_dtype: str, swap: bool, width: int, values: np.ndarray, epilogue: str = "none") -> Staged:
    library = folder / f"{out_dtype}{swap}{epilogue}.so"
    if not library.exists():
        schedule = Schedule.parse(SCHEDULE.name + "_swap") if swap else SCHEDULE
        problem = Problem(64, 128, 128, "fp8", out_dtype=out_dtype, epilogue=epilogue)
        text = "\n".join(stores.functions(problem, schedule))
        text = re.sub(r"__device__ __forceinline__ void store_\w+\(.*?\n\}\n", "", text, flags=re.DOTALL)
        eight = "run<8>(chunk, log, d)" if out_dtype == "fp32" or swap else "0"
        run = RUN.replace("MOST", str(MOST)).replace("EIGHT", eight)
        run = run.replace("stage_piece", stores.stage_function(problem, "d"))
        native.library(HOST + text + run, folder, library.stem)
    # What each thread holds of both pieces: d[4 * block + 2 * half + e] is row 16 w + lane / 4 + 8 * half.
    thread, block, half, e = np.ix_(range(128), range(width // 4), range(2), range(2))
    rows = thread // 32 * 16 + thread % 32 // 4 + 8 * half + 0 * block + 0 * e
    columns = 8 * block + thread % 4 * 2 + e + 0 * half
    held = values[rows, columns].astype(np.float32).reshape(128, width)
    memory = np.zeros(64 * width * OUT_DTYPE_BYTES[out_dtype], np.uint8)
    log = np.zeros((128, MOST, 2), np.uint32)
    count = ctypes.CDLL(str(library)).stage(
        width, memory.ctypes.data_as(ctypes.c_void_p), log.ctypes.data_as(ctypes.c_void_p),
        held.ctypes.data_as(ctypes.c_void_p),
    )  # fmt: skip
    assert 0 < count <= MOST
    return Staged(memory, log[:, :count])


CASES = [
    (out_dtype, swap, width)
    for out_dtype, widths in (("fp32", (8, 16, 32)), ("fp8", (16, 32, 64)))
    for swap in (False, True)
    for width in widths + ((8,) if out_dtype == "fp8" and swap else (64,) if out_dtype == "fp32" and swap else ())
]


@pytest.mark.parametrize("out_dtype", ["fp32", "fp8"])
@pytest.mark.parametrize("swap", [False, True])
def test_what_is_activated_as_it_is_stored_is_the_same_elsewhere(folder: Path, out_dtype: str, swap: bool) -> None:
    values = (np.arange(64 * 64) * 7919 % 251 - 125).reshape(64, 64)
    activated = staged(folder, out_dtype, swap, 32, values, "relu")
    expected = staged(folder, out_dtype, swap, 32, np.maximum(values, 0))
    assert (values < 0).any() and (activated.memory == expected.memory).all() and expected.memory.any()
    assert (activated.log == expected.log).all()


@pytest.mark.parametrize(("out_dtype", "swap", "width"), CASES)
def test_pieces_lie_in_their_swizzle_and_stores_meet_no_bank_twice(
    folder: Path, out_dtype: str, swap: bool, width: int
) -> None:
    size = OUT_DTYPE_BYTES[out_dtype]
    dtype = np.float32 if size == 4 else np.uint8
    values = (np.arange(64 * 2 * width) * 7919 % (2**20 if size == 4 else 251)).reshape(64, 2 * width)
    found = staged(folder, out_dtype, swap, width, values)

    piece = values[:, width:].T if swap else values[:, width:]
    plan = launch_plan(
        Problem(64, 128, 128, "fp8", out_dtype=out_dtype),
        Schedule.parse(f"coop1_64x{width}x128_s2_w0_c1x1_pall_rm1_reg0-0_tma{max(16, width)}x1" + "_swap" * swap),
    )
    (spec,) = [spec for spec in plan.tensor_maps if spec.operand == "d"]
    columns, rows = spec.box
    boxes = np.split(piece, piece.shape[1] // columns, axis=1)
    expected = np.concatenate([box.astype(dtype).reshape(-1) for box in boxes]).view(np.uint8)
    assert boxes[0].shape == (rows, columns)
    offsets = np.arange(len(expected))
    exchange = offsets >> 7 & max(0, spec.swizzle_bytes // 16 - 1)
    assert (found.memory[offsets ^ exchange << 4] == expected).all()

    for warp in range(4):
        for store in range(found.log.shape[1]):
            lanes = found.log[32 * warp : 32 * warp + 32, store]
            at_once = 16 if lanes[0, 1] == 8 else 32  # lanes whose words go to the banks together
            for first in range(0, 32, at_once):
                words = defaultdict(set)
                for address, count in lanes[first : first + at_once].tolist():
                    for byte in range(address, address + count):
                        words[byte // 4 % 32].add(byte // 4)
                assert max(map(len, words.values())) == 1
