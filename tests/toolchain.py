"""Kernels for tests of the toolchain: a problem, schedules that compile fast, and sources with planted mistakes."""

from __future__ import annotations

from tileseek.codegen import KernelSource
from tileseek.space import Problem, Schedule

PROBLEM = Problem(m=512, n=512, k=512, dtype="bf16", layout="nt")
SMALL = Schedule.parse("coop1_64x32x64_s2_w0_c1x1_pall_rm1_reg0-0_direct")
OTHER = Schedule.parse("coop1_64x16x64_s2_w0_c1x1_pall_rm1_reg0-0_direct")
SPLIT = Schedule.parse("coop2_128x64x64_s4_w1_c2x1_pall_rm8_reg40-232_tma64x1")
PINGPONG = Schedule.parse("pp2_64x64x64_s4_w1_c1x1_pall_rm8_reg40-232_tma32x2")
OVERFULL = Schedule.parse("coop2_256x256x64_s2_w1_c1x1_pall_rm8_reg24-240_direct")
"""256 accumulators a thread: spills, and ptxas serialises the wgmmas."""

BROKEN = KernelSource('extern "C" __global__ void broken() { undefined(); }\n', "broken")

ENDLESS = KernelSource(
    """template <int DEPTH, long long PATH> struct Tree {
  static constexpr int size = Tree<DEPTH - 1, 2 * PATH>::size + Tree<DEPTH - 1, 2 * PATH + 1>::size;
};
template <long long PATH> struct Tree<0, PATH> { static constexpr int size = 1; };
extern "C" __global__ void endless(int* p) { *p = Tree<40, 0>::size; }
""",
    "endless",
)
"""Takes the compiler for ever, and little memory in the time that a test waits."""
