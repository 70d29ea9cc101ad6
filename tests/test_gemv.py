"""The arrangement `gemv`: its kernels run on the CPU from their own text, and compile for the GPU as they read."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fibers import build
from numpy.typing import NDArray
from tileseek.codegen import CompilePool, disassemble, gemv, launch_plan
from tileseek.cost_model.analytic import estimate_us
from tileseek.cost_model.draft import draft
from tileseek.measure.check import companions
from tileseek.space import GEMV, H200, Problem, Schedule, violations
from tileseek.space.gemv import gemv_tile

ONE = Problem(1, 4096, 4096)
ROWS = Schedule.parse("gemv4_1x8x1024_s4_w0_c1x1_tile_rm1_reg0-0_direct")
COLUMNS = Schedule.parse("gemv4_1x64x256_s4_w0_c1x1_tile_rm1_reg0-0_direct")

HOST = """
struct { operator int() const { return current; } } const thread_index;
struct { decltype(thread_index) x = thread_index; } const threadIdx;
struct { int x; } blockIdx, gridDim;
static float partials[1 << 16], lanes[1024];
static Barrier barrier;
static void __syncthreads() { barrier.sync(THREADS); }
static float __shfl_xor_sync(u32, float v, int apart) {
  lanes[current] = v;
  __syncthreads();
  v = lanes[current ^ apart];
  __syncthreads();
  return v;
}
static uint4 load_weights(const unsigned short* source, bool inside, u64 = 0) {
  uint4 v = {0, 0, 0, 0};
  if (inside) memcpy(&v, source, 16);
  return v;
}
struct Vector { u32 words[(VECTOR_ELEMENTS + 1) / 2]; };
static Vector load_vector(const unsigned short* source, bool inside) {
  Vector v = {};
  if (inside) memcpy(&v, source, 2 * VECTOR_ELEMENTS);
  return v;
}
static u64 evict_first() { return 0; }
static void launch_dependents() {}
static void wait_for_dependencies() {}
static float load_float(const float* source) { return *source; }
static float widen(u32 bits) { return __uint_as_float(bits << 16); }
static u32 pack(float low, float) {  // round to nearest even
  u32 bits;
  memcpy(&bits, &low, 4);
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF;
}
"""


def host_source(problem: Problem, s: Schedule) -> str:
    """The generated kernel with its single instructions replaced, and `call`, which runs its CTAs one after another,
    the last first."""
    tile = gemv_tile(problem, s)
    _, constants, *parts = gemv.parts(problem, s, "kernel")
    kernel = parts[-1].replace("extern __shared__ float partials[];", "").replace("__shared__ bool", "static bool")
    own = [part for part in parts[:-1] if "asm" not in part and "widen(u32" not in part]
    signature = kernel[kernel.index("kernel(") + 7 : kernel.index(") {")]
    arguments = [argument.rsplit(maxsplit=1) for argument in signature.split(",")]
    host = HOST.replace("VECTOR_ELEMENTS", str(8 if tile.k_major else tile.loads))
    lines = [constants, host, *own, kernel.replace('extern "C"', "")]
    lines += [f"static {kind} the_{name};" for kind, name in arguments]
    lines += [
        f"static void body(int) {{ kernel({', '.join(f'the_{name}' for _, name in arguments)}); }}",
        f'extern "C" void call(int grid, {signature}) {{',
        *(f"  the_{name} = {name};" for _, name in arguments),
        "  gridDim.x = grid;",
        "  for (blockIdx.x = grid - 1; blockIdx.x >= 0; --blockIdx.x) run_fibers(THREADS, body);",
        "}",
    ]
    return "\n".join(lines)


def bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Small integers as bf16."""
    return (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def run(problem: Problem, s: Schedule, folder: Path, calls: int = 1) -> None:
    """Run the kernel on integers and compare D to the bit; its workspace must be as it was."""
    assert not violations(problem, s, H200), violations(problem, s, H200)
    code = build(host_source(problem, s), folder, "kernel")
    rng = np.random.default_rng(0)
    a = rng.integers(-2, 3, (problem.m, problem.k)).astype(np.float32)
    b = rng.integers(-2, 3, (problem.k, problem.n)).astype(np.float32)
    c = rng.integers(-2, 3, (problem.m, problem.n)).astype(np.float32)
    axis = problem.fused.bias
    bias = rng.integers(-2, 3, problem.m if axis == "m" else problem.n).astype(np.float32)
    exact = a @ b
    if axis:
        exact += bias[:, None] if axis == "m" else bias
    if problem.fused.activation:
        exact = np.maximum(exact, 0)
    exact += c * problem.fused.residual
    rounded = np.rint(exact).astype(np.float32)
    stored = {
        "a": bits(a if problem.a_major == "k" else a.T),
        "b": bits(b if problem.b_major == "n" else b.T),
    }
    plan = launch_plan(problem, s)
    d = np.full((problem.m + 2, problem.n), 0xFFFF, dtype=np.uint16)
    workspace = np.zeros(plan.workspace_bytes(plan.grid(132)) + 16, dtype=np.uint8)
    memory = {**stored, "bias": bits(bias), "c": bits(c), "d": d[1:], "workspace": workspace}
    arguments: list[object] = [ctypes.c_int(value) for value in plan.ints]
    for each in plan.arguments:
        value = memory[each.name].ctypes.data if each.value is None else each.value
        arguments.append(ctypes.c_longlong(value))
    for _ in range(calls):
        d[:] = 0xFFFF
        code.call(plan.grid(132), *arguments)
        assert (d[[0, -1]] == 0xFFFF).all()
        found = (d[1:-1].astype(np.uint32) << 16).view(np.float32)
        assert np.array_equal(found, (bf16(rounded)))
        if plan.workspace is not None:
            assert not workspace[: plan.workspace.flag_bytes].any()
    assert not workspace[-16:].any()


def bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to bf16, to the nearest even."""
    whole = np.ascontiguousarray(values).view(np.uint32)
    return ((whole + 0x7FFF + (whole >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (Problem(1, 40, 1096), "gemv1_1x8x512_s3_w0_c1x1_tile_rm1_reg0-0_direct"),
        (Problem(3, 24, 2056), "gemv1_4x4x1024_s2_w0_c1x1_tile_rm1_reg0-0_direct_k3_slots_efb"),
        (Problem(5, 136, 600, epilogue="bias+relu+residual"), "gemv1_8x16x256_s2_w0_c1x1_tile_rm1_reg0-0_direct"),
        (Problem(40, 8, 600, epilogue="bias_m+relu"), "gemv1_8x4x256_s2_w0_c1x1_tile_rm1_reg0-0_direct_swap_k2_slots"),
        (Problem(2, 136, 104, layout="nn"), "gemv1_2x64x32_s3_w0_c1x1_tile_rm1_reg0-0_direct_k2_slots"),
        (Problem(7, 264, 80, layout="nn", epilogue="bias"), "gemv2_8x256x16_s2_w0_c1x1_tile_rm1_reg0-0_direct_efb"),
        (Problem(1, 200, 3000, layout="nn"), "gemv2_1x128x32_s4_w0_c1x1_tile_rm1_reg0-0_direct"),
        (Problem(72, 8, 96, layout="tt", epilogue="bias+residual"),
         "gemv1_8x64x16_s3_w0_c1x1_tile_rm1_reg0-0_direct_swap_k5_slots_efa"),
        (Problem(1, 40, 1096, overlap="weights"), "gemv1_1x8x256_s2_w0_c1x1_tile_rm1_reg0-0_direct_pdl-weights"),
    ],
    ids=str,
)  # fmt: skip
def test_a_kernel_is_right_to_the_bit_on_the_cpu(problem: Problem, name: str, tmp_path: Path) -> None:
    run(problem, Schedule.parse(name), tmp_path, calls=2)


def test_companions_have_as_many_vectors_as_the_kernel_takes() -> None:
    for problem, schedule in (
        (replace(ONE, m=3), replace(ROWS, tile_m=4, stages=2)),
        (replace(ONE, layout="nn"), COLUMNS),
    ):
        found = companions(problem, schedule, H200)
        assert [p.m for p in found] == [min(problem.m if problem.m == 1 else 4, m) for m in (2999, 2999, 37, 5)]


def test_weights_stream_in_whole_vectors() -> None:
    """Each thread's loads stay 16 bytes wide and go past L1: as many in the machine code as in the source."""
    schedules = [(ONE, ROWS), (replace(ONE, layout="nn"), COLUMNS)]
    with CompilePool(1) as pool:
        kernels = pool.compile_many(schedules)
    for (problem, schedule), kernel in zip(schedules, kernels, strict=True):
        assert kernel.status == "ok", kernel.reason
        loads = schedule.stages * gemv_tile(problem, schedule).loads
        assert len(re.findall(r"LDG\.E\.NA\S*\.128", disassemble(kernel.cubin))) == 2 * loads  # first, and again


def test_kernels_of_every_form_compile() -> None:
    forms = [
        (Problem(2, 4096, 4096, dtype="fp16"), "gemv4_2x16x1024_s3_w0_c1x1_tile_rm1_reg0-0_direct_k2_slots_efb"),
        (Problem(1, 4096, 4096, dtype="fp16", layout="nn"), "gemv2_1x64x64_s8_w0_c1x1_tile_rm1_reg0-0_direct_k4_slots"),
        (Problem(8, 4096, 4096), "gemv2_8x8x512_s4_w0_c1x1_tile_rm1_reg0-0_direct"),
        (Problem(4096, 8, 4096, layout="tt"), "gemv1_8x64x32_s4_w0_c1x1_tile_rm1_reg0-0_direct_swap_efa"),
        (Problem(4, 4096, 4096, epilogue="bias+gelu+residual", overlap="weights"),
         "gemv2_4x16x512_s4_w0_c1x1_tile_rm1_reg0-0_direct_pdl-weights"),
    ]  # fmt: skip
    with CompilePool(1) as pool:
        kernels = pool.compile_many([(problem, Schedule.parse(name)) for problem, name in forms])
    assert [kernel.reason for kernel in kernels] == [""] * len(forms)


@pytest.mark.parametrize(
    ("problem", "changes", "reason"),
    [
        (ONE, {"tile_m": 2}, "tile_m 2 for 1 vectors: valid is 1"),
        (replace(ONE, m=16), {}, "gemv of 16 vectors: valid are at most 8"),
        (ONE, {"swap_ab": True}, "gemv of 4096 vectors"),
        (ONE, {"stages": 5}, "stages 5"),
        (ONE, {"tile_k": 128}, "tile_k 128 of weights contiguous along k"),
        (ONE, {"tile_n": 4, "tile_k": 512}, "slices of 4 x 512 weights for 512 threads"),
        (ONE, {"tile_n": 32}, "registers a thread: valid is at most 128"),
        (ONE, {"persistent": True}, "persistent True in gemv: valid is False"),
        (ONE, {"split_k": 2}, "reduction cluster with split_k 2"),
        (ONE, {"split_k": 8, "reduction": "slots"}, "split_k 8 of 4 k-blocks"),
        (ONE, {"evict_first": "a"}, "evict_first a of the vectors"),
        (ONE, {"dependent_launch": "wait"}, "dependent_launch 'wait' where the overlap is none"),
    ],
)
def test_each_rule_names_the_value_it_refuses(problem: Problem, changes: dict[str, Any], reason: str) -> None:
    reasons = violations(problem, replace(ROWS, **changes), H200)
    assert any(reason in words for words in reasons), reasons


def test_the_draft_knows_when_to_stream() -> None:
    for layout in ("nt", "nn"):
        problem = Problem(1, 28672, 4096, layout=layout)
        drafted = draft(problem, H200, 48)
        assert {s.arrangement for s in drafted} >= {GEMV, "coop"}
        assert not [s for s in drafted if violations(problem, s, H200)]
    # Streaming was faster where few CTAs of tiles share long rows.
    assert GEMV in {s.arrangement for s in draft(Problem(1, 2112, 7168), H200, 8)}
    assert GEMV not in {s.arrangement for s in draft(Problem(16, 28672, 4096), H200, 24)}


def test_more_in_flight_is_expected_to_be_faster() -> None:
    problem = Problem(1, 57344, 8192)
    assert estimate_us(problem, replace(ROWS, stages=2), H200) > estimate_us(problem, ROWS, H200)
