"""What is fused into the epilogue: scales, bias, activation, residual. Generated code has only what is asked for.

`row` and `column` are the first of the warpgroup's rows and of the tile's columns, `m` and `n` the extents of what
the kernel computes: with swapped operands a bias along n is one along rows.
"""

from __future__ import annotations

from ..space import PINGPONG, Problem, Schedule
from . import ptx, scales
from .pieces import Piece, pieces
from .walk import FIRST_COLUMN, FIRST_ROW, consumer_loop, product


def bias_axis(problem: Problem, s: Schedule) -> str:
    """The axis of the kernel's product that the bias runs along: `row`, `column`, or none."""
    axis = problem.fused.bias
    if not axis:
        return ""
    return "row" if (axis == "m") != s.swap_ab else "column"


def functions(problem: Problem, s: Schedule) -> list[str]:
    """Device functions of what is fused."""
    fused = problem.fused
    found = scales.functions(problem, s)
    read = problem.bias_dtype if fused.bias else problem.out_dtype
    if fused.bias or (fused.residual and read != "fp32"):
        found.append(widen_function(read))
    if axis := bias_axis(problem, s):
        found.append((_COLUMN_BIAS if axis == "column" else _ROW_BIAS).replace("unsigned short", ptx.C_TYPES[read]))
    if fused.activation:
        found.append(_ACTIVATIONS[fused.activation] + _ACTIVATE)
    if fused.residual:
        staged = _ldmatrix(s.swap_ab) + _RESIDUAL_STAGED
        found.append(staged if s.residual_buffers else _residual_from_memory(problem.out_dtype))
    return found


def widen_function(dtype: str) -> str:
    """`widen`: a 16-bit element, in the lower half of a word, to fp32."""
    return _WIDEN[dtype]


def activation_function(name: str) -> str:
    """`activation`, of one value."""
    return _ACTIVATIONS[name].rstrip()


def before_main_loop(problem: Problem, s: Schedule) -> list[str]:
    """Lines that ask for the scales and the bias of a tile, which arrive while the main loop runs."""
    lines = scales.before_main_loop(problem, s)
    match bias_axis(problem, s):
        case "column":
            lines += [
                "float column_bias[TILE_N > 128 ? 2 : 1];",
                "load_column_bias(column_bias, bias, column, n, thread);",
            ]
        case "row":
            lines += ["float row_bias[M64][2];", "load_row_bias(row_bias, bias, row, m, thread);"]
    return lines


def after_main_loop(problem: Problem, s: Schedule) -> list[str]:
    """Lines that lay scales and bias out for all threads; those who read them synchronise first."""
    lines = scales.after_main_loop(problem, s)
    return [*lines, "keep_column_bias(column_bias, bias_row, thread);"] if bias_axis(problem, s) == "column" else lines


def finish(problem: Problem, s: Schedule, piece: Piece) -> list[str]:
    """Lines that turn sums into results, for one piece."""
    fused = problem.fused
    where = f"<{piece.column}, {piece.width}>(accumulators[{piece.block}]"
    lines = scales.finish(problem, s, piece)
    match bias_axis(problem, s):
        case "column":
            lines.append(f"add_column_bias{where}, bias_row, thread);")
        case "row":
            lines.append(f"add_row_bias{where}, row_bias[{piece.block}]);")
    if fused.activation:
        lines.append(f"activate{where});")
    if s.residual_buffers:
        lines += [
            "mbarrier_wait(landed + 8 * residual.stage, residual.parity);",
            f"add_residual{where}, residual_chunks + residual.stage * CHUNK, thread);",
        ]
    elif fused.residual:
        lines.append(f"add_residual{where}, {product('c', problem)}, c_pitch, {piece.row}, column, m, n, thread);")
    return lines


def release(s: Schedule) -> list[str]:
    """Lines that hand a chunk of the residual back to its loader, after the proxy fence of `stage_piece`: what was read
    by ordinary loads must have been read before the copy engine writes there again."""
    if not s.residual_buffers:
        return []
    return [
        "__syncwarp();",
        "if (thread % 32 == 0) mbarrier_arrive(free + 8 * residual.stage);",
        "residual.next();",
    ]


def constants(s: Schedule) -> list[str]:
    """Sizes of the residual's ring."""
    if not s.residual_buffers:
        return []
    return [f"constexpr int RESIDUALS = {s.residual_buffers};  // chunks of a residual, for each consumer"]


def loader(problem: Problem, s: Schedule) -> list[str]:
    """The branch of the warps that load a residual, one for each consumer, as far ahead as its buffers allow."""
    if not s.residual_buffers:
        return []
    rows = "" if s.arrangement == PINGPONG else " + consumer * 64 * M64"
    lines = [
        "if (warp > 0 && warp <= CONSUMERS && elect_one()) {",
        "  // Brings the residual of one consumer, chunk by chunk, ahead of its epilogue.",
        "  const int consumer = warp - 1;",
        *("  " + line for line in places()),
    ]
    if s.dependent_launch:
        lines.append("  wait_for_dependencies();")
    lines += [
        "  Ring<RESIDUALS> residual{0, 0};",
        *("  " + line for line in consumer_loop(s)),
        "    const Position at = tile_position(tile, walk);",
        f"    const int row = {FIRST_ROW}{rows};",
        f"    const int column = {FIRST_COLUMN};",
        f"    auto load = [&](const TensorMap& map, int width, int x, int y{', int product' * problem.batched}) {{",
        "      mbarrier_wait(free + 8 * residual.stage, residual.parity ^ 1);",
        "      mbarrier_expect(landed + 8 * residual.stage, 64 * 2 * width);",
        f"      tma_load(residual_chunks + residual.stage * CHUNK, map, x, y{', product' * problem.batched},"
        " landed + 8 * residual.stage);",
        "      residual.next();",
        "    };",
    ]
    for piece in pieces(s):
        owner = f"if (rank == {piece.owner}) " if s.split_cluster else ""
        lines.append(f"    {owner}load(map_c{piece.width}, {piece.width}, {piece.place(problem, s)});")
    return [*lines, "  }", "}"]


def places() -> list[str]:
    """Where a consumer's residual lands, and the barriers of its chunks."""
    return [
        "const u32 residual_chunks = smem + SMEM_RESIDUAL + consumer * RESIDUALS * CHUNK;",
        "const u32 landed = smem + SMEM_LANDED + 8 * RESIDUALS * consumer;",
        "const u32 free = landed + 8 * RESIDUALS * CONSUMERS;",
    ]


_WIDEN = {
    "bf16": """\
__device__ __forceinline__ float widen(u32 bits) { return __uint_as_float(bits << 16); }""",
    "fp16": """\
__device__ __forceinline__ float widen(u32 bits) {
  float value;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(value) : "r"(bits));
  return value;
}""",
    "fp32": """\
__device__ __forceinline__ float widen(float value) { return value; }""",
}

_COLUMN_BIAS = """\
// A bias along columns: each thread loads one or two values, and the whole warpgroup finds them in shared memory.
template <int COUNT>
__device__ __forceinline__ void load_column_bias(float (&values)[COUNT], const unsigned short* bias, int column, int n,
                                                 int thread) {
  #pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int at = thread + 128 * i;
    values[i] = at < TILE_N && column + at < n ? widen(bias[column + at]) : 0;
  }
}
template <int COUNT>
__device__ __forceinline__ void keep_column_bias(const float (&values)[COUNT], float* bias_row, int thread) {
  #pragma unroll
  for (int i = 0; i < COUNT; ++i)
    if (thread + 128 * i < TILE_N) bias_row[thread + 128 * i] = values[i];
}
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void add_column_bias(float (&d)[COUNT], const float* bias_row, int thread) {
  #pragma unroll
  for (int j = COLUMN / 2; j < (COLUMN + WIDTH) / 2; j += 4) {
    const float2 b = *(const float2*)(bias_row + 2 * j + thread % 4 * 2);
    d[j] += b.x;
    d[j + 1] += b.y;
    d[j + 2] += b.x;
    d[j + 3] += b.y;
  }
}"""

_ROW_BIAS = """\
// A bias along rows: each thread needs those of its own rows.
__device__ __forceinline__ void load_row_bias(float (&values)[M64][2], const unsigned short* bias, int row, int m,
                                              int thread) {
  #pragma unroll
  for (int i = 0; i < M64; ++i) {
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + 64 * i + thread / 32 * 16 + thread % 32 / 4 + 8 * half;
      values[i][half] = at < m ? widen(bias[at]) : 0;
    }
  }
}
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void add_row_bias(float (&d)[COUNT], const float (&values)[2]) {
  #pragma unroll
  for (int j = COLUMN / 2; j < (COLUMN + WIDTH) / 2; ++j) d[j] += values[j / 2 % 2];
}"""

_ACTIVATIONS = {
    "relu": """\
__device__ __forceinline__ float activation(float x) { return fmaxf(x, 0.0f); }
""",
    "silu": """\
// x * sigmoid(x)
__device__ __forceinline__ float activation(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
""",
    "gelu": """\
// x * the normal distribution function of x
__device__ __forceinline__ float activation(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
""",
    "gelu_tanh": """\
// 0.5 x (1 + tanh(u)) = x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
__device__ __forceinline__ float activation(float x) {
  const float u = 0.79788456f * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1.0f + __expf(-2.0f * u));
}
""",
}

_ACTIVATE = """\
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void activate(float (&d)[COUNT]) {
  #pragma unroll
  for (int j = COLUMN / 2; j < (COLUMN + WIDTH) / 2; ++j) d[j] = activation(d[j]);
}"""

_RESIDUAL_STAGED = """\
// Adds a piece of the residual, which lies in shared memory as a piece to be stored does.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void add_residual(float (&d)[COUNT], u32 chunk, int thread) {
  #pragma unroll
  for (int unit = 0; unit < WIDTH / 8; unit += 2) {
    u32 r[4];
    ldmatrix_x4(piece_address<WIDTH>(chunk, unit, thread), r);
    #pragma unroll
    for (int i = 0; i < (WIDTH == 8 ? 2 : 4); ++i) {
      const int j = (COLUMN / 8 + unit) * 4 + 2 * i;
      d[j] += widen(r[i] & 0xFFFF);
      d[j + 1] += widen(r[i] >> 16);
    }
  }
}"""


def _residual_from_memory(dtype: str) -> str:
    element = ptx.C_TYPES[dtype]
    if dtype == "fp32":
        pair, load = "float2", 'asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y)'
        first, second = "two.x", "two.y"
    else:
        pair, load = "u32", 'asm volatile("ld.global.u32 %0, [%1];" : "=r"(two)'
        first, second = "widen(two & 0xFFFF)", "widen(two >> 16)"
    return f"""\
// Volatile, so that the loads of later pieces are not brought forward: they would not find registers.
__device__ __forceinline__ {pair} load_pair(const {element}* source) {{
  {pair} two;
  {load} : "l"(source) : "memory");
  return two;
}}
// Adds a piece of the residual from device memory.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void add_residual(float (&d)[COUNT], const {element}* c, long long pitch, int row,
                                             int column, int m, int n, int thread) {{
  const int first = row + thread / 32 * 16 + thread % 32 / 4;
  const int pair = column + COLUMN + thread % 4 * 2;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {{
    const int at = first + 8 * half;
    if (at >= m) continue;
    #pragma unroll
    for (int unit = 0; unit < WIDTH / 8; ++unit) {{
      if (pair + 8 * unit >= n) continue;
      const {pair} two = load_pair(c + at * pitch + pair + 8 * unit);
      const int j = (COLUMN / 8 + unit) * 4 + 2 * half;
      d[j] += {first};
      d[j + 1] += {second};
    }}
  }}
}}"""


def _ldmatrix(transposed: bool) -> str:
    form = ".trans" if transposed else ""
    return f"""\
__device__ __forceinline__ void ldmatrix_x4(u32 row, u32 (&r)[4]) {{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{form}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}}
"""
