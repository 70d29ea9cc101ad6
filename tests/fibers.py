"""Generated CUDA on the CPU: a C++ prelude in which the threads of a kernel are fibers that take turns at barriers."""

from __future__ import annotations

import ctypes
from pathlib import Path

import native

PRELUDE = """
#include <algorithm>
#include <cmath>
#include <cstring>
#include <ucontext.h>
#include <vector>
using std::min; using std::max;
#define __global__
#define __launch_bounds__(threads)
#define __device__
#define __forceinline__ inline
typedef unsigned int u32;
typedef unsigned long long u64;
struct uint4 { u32 x, y, z, w; };
struct float4 { float x, y, z, w; };

// One fiber runs at a time, until it waits for others.
static ucontext_t scheduler;
static std::vector<ucontext_t> fibers;
static std::vector<char> stacks, finished;
static int current;
static void (*fiber_body)(int);
static void wait_a_turn() {
  const int me = current;
  swapcontext(&fibers[me], &scheduler);
  current = me;
}
static void fiber_start() {
  fiber_body(current);
  finished[current] = 1;
  setcontext(&scheduler);
}
static void run_fibers(int count, void (*body)(int)) {
  const int size = 1 << 16;
  fibers.assign(count, ucontext_t{});
  finished.assign(count, 0);
  stacks.resize((size_t)count * size);
  fiber_body = body;
  for (int i = 0; i < count; ++i) {
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = &stacks[(size_t)i * size];
    fibers[i].uc_stack.ss_size = size;
    makecontext(&fibers[i], fiber_start, 0);
  }
  for (bool left = true; left;) {
    left = false;
    for (int i = 0; i < count; ++i) {
      if (finished[i]) continue;
      current = i;
      swapcontext(&scheduler, &fibers[i]);
      left |= !finished[i];
    }
  }
}
struct Barrier {
  int waiting = 0, round = 0;
  void sync(int count) {
    const int mine = round;
    if (++waiting == count) { waiting = 0; ++round; }
    else while (round == mine) wait_a_turn();
  }
};

static float __uint_as_float(u32 bits) { float v; memcpy(&v, &bits, 4); return v; }
static void device_fence() {}
static u32 arrive_global(u32* counter) { return (*counter)++; }
"""


def build(source: str, folder: Path, name: str) -> ctypes.CDLL:
    """The shared library of a C++ source after the prelude; skips the test where there is no compiler."""
    return native.library(PRELUDE + source, folder, name)
