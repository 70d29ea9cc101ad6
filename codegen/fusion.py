"""What is fused into the epilogue: scales, bias, activation, residual. Generated code has only what is asked for.

`row` and `column` are the first of the warpgroup's rows and of the tile's columns, `m` and `n` the extents of what
the kernel computes: with swapped operands a bias along n is one along rows.
"""

from __future__ import annotations

from ..space import PINGPONG, Epilogue, Problem, Schedule
from ..space.resources import copied
from . import ptx, scales
from .pieces import Piece, pieces
from .walk import FIRST_ROW, consumer_loop, d_columns, first_column, product


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
        found.append(_load_bias(ptx.C_TYPES[read], fused.gated and axis == "column"))
        found.append(_ADD_COLUMN_BIAS if axis == "column" else _ADD_ROW_BIAS)
    if fused.activated in ("before", "added"):
        activate = "\n" + _ACTIVATE if fused.activated == "before" else ""
        found.append(activation_function(fused.activation, problem.out_dtype) + activate)
    if fused.gated:
        found.append(_GATE)
    if fused.residual:
        if s.residual_buffers:
            found.append(_ldmatrix(s.swap_ab) + _residual_from_chunks(fused))
        else:
            found.append(_residual_from_memory(problem))
    return found


def widen_function(dtype: str) -> str:
    """`widen`: a 16-bit element, in the lower half of a word, to fp32."""
    return _WIDEN[dtype]


def activation_function(name: str, out_dtype: str) -> str:
    """`activation`, of one value, exact enough for D's dtype."""
    return (_GELU_FP32 if (name, out_dtype) == ("gelu", "fp32") else _ACTIVATIONS[name]).rstrip()


def before_main_loop(problem: Problem, s: Schedule) -> list[str]:
    """Lines that ask for the scales and the bias of a tile, which arrive while the main loop runs."""
    lines = scales.before_main_loop(problem, s)
    if axis := bias_axis(problem, s):
        where = "row, m" if axis == "row" else f"column, {d_columns(problem)}"
        lines += ["float some_bias[(BIAS + 127) / 128];", f"load_bias(some_bias, bias, {where}, thread);"]
    return lines


def after_main_loop(problem: Problem, s: Schedule) -> list[str]:
    """Lines that lay scales and bias out for all threads; those who read them synchronise first."""
    lines = scales.after_main_loop(problem, s)
    return [*lines, "keep_bias(some_bias, tile_bias, thread);"] if problem.fused.bias else lines


def before_activation(problem: Problem, s: Schedule, piece: Piece) -> list[str]:
    """Lines that turn the sums of one piece into what comes before the activation."""
    lines = []
    for column in piece.halves:
        where = f"<{column}, {piece.width}>(accumulators[{piece.block}]"
        lines += scales.finish(problem, s, piece, where)
        match bias_axis(problem, s):
            case "column":
                lines.append(f"add_column_bias{where}, tile_bias, thread);")
            case "row":
                rows = f" + {64 * piece.block}" if piece.block else ""
                lines.append(f"add_row_bias{where}, tile_bias{rows}, thread);")
    return lines


def finish(problem: Problem, s: Schedule, piece: Piece) -> list[str]:
    """Lines that turn that into a piece of D."""
    fused = problem.fused
    where = f"<{piece.column}, {piece.width}>(accumulators[{piece.block}]"
    beta = ", beta" * fused.beta
    lines = []
    if fused.activated == "before":
        lines.append(f"activate{where});")
    if fused.gated:
        lines.append(f"gate{where});")
    if s.residual_buffers:
        lines += [
            "mbarrier_wait(landed + 8 * residual.stage, residual.parity);",
            f"add_residual{where}, residual_chunks + residual.stage * CHUNK, thread{beta});",
        ]
    elif fused.residual:
        source, columns = product("c", problem), d_columns(problem)
        lines.append(f"add_residual{where}, {source}, c_pitch, {piece.row}, column, m, {columns}, thread{beta});")
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


def constants(problem: Problem, s: Schedule) -> list[str]:
    """Sizes of what a consumer keeps of the bias, and of the residual's ring."""
    lines = []
    if axis := bias_axis(problem, s):
        lines.append(f"constexpr int BIAS = {'64 * M64' if axis == 'row' else 'TILE_N'};  // values for a warpgroup")
    if s.residual_buffers:
        lines.append(f"constexpr int RESIDUALS = {s.residual_buffers};  // chunks of a residual, for each consumer")
    return lines


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
        f"    const int column = {first_column(problem)};",
        f"    auto load = [&](const TensorMap& map, int width, int x, int y{', int product' * problem.batched}) {{",
        "      mbarrier_wait(free + 8 * residual.stage, residual.parity ^ 1);",
        "      mbarrier_expect(landed + 8 * residual.stage, 64 * 2 * width);",
        f"      tma_load(residual_chunks + residual.stage * CHUNK, map, x, y{', product' * problem.batched},"
        " landed + 8 * residual.stage);",
        "      residual.next();",
        "    };",
    ]
    for piece in pieces(problem, s):
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


def _load_bias(element: str, gated: bool) -> str:
    """`load_bias` and `keep_bias`: of the rows or columns of a warpgroup's tile."""
    if gated:
        body = """\
    const int half = at / (TILE_N / 2);  // the bias of the gate, then that of its up
    const int place = first + at % (TILE_N / 2);
    values[i] = at < BIAS && place < end ? widen(bias[place + half * end]) : 0;"""
    else:
        body = """\
    values[i] = at < BIAS && first + at < end ? widen(bias[first + at]) : 0;"""
    return f"""\
// The bias of a tile: each thread loads one or two values, and the whole warpgroup finds them in shared memory.
template <int COUNT>
__device__ __forceinline__ void load_bias(float (&values)[COUNT], const {element}* bias, int first, int end,
                                          int thread) {{
  #pragma unroll
  for (int i = 0; i < COUNT; ++i) {{
    const int at = thread + 128 * i;
{body}
  }}
}}
template <int COUNT>
__device__ __forceinline__ void keep_bias(const float (&values)[COUNT], float* tile_bias, int thread) {{
  #pragma unroll
  for (int i = 0; i < COUNT; ++i)
    if (thread + 128 * i < BIAS) tile_bias[thread + 128 * i] = values[i];
}}"""


_ADD_COLUMN_BIAS = """\
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void add_column_bias(float (&d)[COUNT], const float* tile_bias, int thread) {
  #pragma unroll
  for (int j = COLUMN / 2; j < (COLUMN + WIDTH) / 2; j += 4) {
    const float2 b = *(const float2*)(tile_bias + 2 * j + thread % 4 * 2);
    d[j] += b.x;
    d[j + 1] += b.y;
    d[j + 2] += b.x;
    d[j + 3] += b.y;
  }
}"""

_ADD_ROW_BIAS = """\
// Each thread owns two rows of a block: thread / 4 and thread / 4 + 8 of its warp's 16.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void add_row_bias(float (&d)[COUNT], const float* block_bias, int thread) {
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const float upper = block_bias[row], lower = block_bias[row + 8];
  #pragma unroll
  for (int j = COLUMN / 2; j < (COLUMN + WIDTH) / 2; ++j) d[j] += j / 2 % 2 ? lower : upper;
}"""

_LOGISTIC = """\
// x / (1 + 2^t): x times a logistic function, in two operations of the special function unit. For a huge t it is 0.
__device__ __forceinline__ float logistic(float x, float t) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return x * inverse;
}
"""

_ACTIVATIONS = {
    "relu": """\
__device__ __forceinline__ float activation(float x) { return fmaxf(x, 0.0f); }
""",
    "silu": f"""\
{_LOGISTIC}// x * sigmoid(x)
__device__ __forceinline__ float activation(float x) {{ return logistic(x, -1.44269504f * x); }}
""",
    "gelu": f"""\
{_LOGISTIC}// x * the normal distribution function of x, as x * sigmoid(u): u is x times a polynomial in x^2. Off
// by at most 2^-13 of the value plus 2^-18.
__device__ __forceinline__ float activation(float x) {{
  const float y = x * x;
  const float q = (((-2.1407482e-6f * y + 6.15220511e-5f) * y + 5.64414657e-4f) * y - 0.105770645f) * y - 2.3016653f;
  return logistic(x, x * q);
}}
""",
    "gelu_tanh": f"""\
{_LOGISTIC}// 0.5 x (1 + tanh(u)) = x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
__device__ __forceinline__ float activation(float x) {{
  return logistic(x, x * (-0.102943240f * (x * x) - 2.30220819f));
}}
""",
}

_GELU_FP32 = """\
// x * the normal distribution function of x
__device__ __forceinline__ float activation(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
"""

_ACTIVATE = """\
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void activate(float (&d)[COUNT]) {
  #pragma unroll
  for (int j = COLUMN / 2; j < (COLUMN + WIDTH) / 2; ++j) d[j] = activation(d[j]);
}"""

_GATE = """\
// The columns of an up lie half a tile after those of its gate: in the same thread, TILE_N / 4 registers on.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void gate(float (&d)[COUNT]) {
  #pragma unroll
  for (int j = COLUMN / 2; j < (COLUMN + WIDTH) / 2; ++j) d[j] *= d[j + TILE_N / 4];
}"""


def _add_residual(source: str, fused: Epilogue) -> str:
    """The head of `add_residual`; `source` says where the residual is."""
    what = f"// Adds a piece of the residual{source}."
    if fused.activated == "added":
        what = f"""\
// Activates a piece and adds the residual to it{source}.
// Element by element: the compiler would begin activations that come before it for the whole tile at once, and there
// are no registers for that."""
    return f"""\
{what}
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void add_residual"""


def _added(fused: Epilogue, element: str, residual: str) -> str:
    """The statement that adds `residual` to an element of the piece."""
    added = f"beta * {residual}" if fused.beta else residual
    if fused.activated == "added":
        return f"{element} = activation({element}) + {added};"
    return f"{element} += {added};"


def _residual_from_chunks(fused: Epilogue) -> str:
    """`add_residual` from shared memory."""
    head = _add_residual(", which lies in shared memory as a piece to be stored does", fused)
    parameter = ", float beta" * fused.beta
    return f"""\
{head}(float (&d)[COUNT], u32 chunk, int thread{parameter}) {{
  #pragma unroll
  for (int unit = 0; unit < WIDTH / 8; unit += 2) {{
    u32 r[4];
    ldmatrix_x4(piece_address<WIDTH>(chunk, unit, thread), r);
    #pragma unroll
    for (int i = 0; i < (WIDTH == 8 ? 2 : 4); ++i) {{
      const int j = (COLUMN / 8 + unit) * 4 + 2 * i;
      {_added(fused, "d[j]", "widen(r[i] & 0xFFFF)")}
      {_added(fused, "d[j + 1]", "widen(r[i] >> 16)")}
    }}
  }}
}}"""


_LOAD_TWO = """\
// Two elements at any address, or the only one that is inside. Volatile, so that the loads of later pieces are not
// brought forward: they would not find registers.
__device__ __forceinline__ u32 load_two(const unsigned short* source, bool both) {
  unsigned short first, second = 0;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(first) : "l"(source) : "memory");
  if (both) asm volatile("ld.global.u16 %0, [%1];" : "=h"(second) : "l"(source + 1) : "memory");
  return first | (u32)second << 16;
}"""


def _load_pair(dtype: str) -> str:
    pair, load = "u32", 'asm volatile("ld.global.u32 %0, [%1];" : "=r"(two)'
    if dtype == "fp32":
        pair, load = "float2", 'asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y)'
    return f"""\
// Volatile, so that the loads of later pieces are not brought forward: they would not find registers.
__device__ __forceinline__ {pair} load_pair(const {ptx.C_TYPES[dtype]}* source) {{
  {pair} two;
  {load} : "l"(source) : "memory");
  return two;
}}"""


def _residual_from_memory(problem: Problem) -> str:
    """`add_residual` from device memory. Pairs lie at multiples of their size, or those of 16-bit elements anywhere."""
    dtype, fused = problem.out_dtype, problem.fused
    parameter = ", float beta" * fused.beta
    element = ptx.C_TYPES[dtype]
    if dtype == "fp32":
        pair, first, second = "float2", "two.x", "two.y"
    else:
        pair, first, second = "u32", "widen(two & 0xFFFF)", "widen(two >> 16)"
    source = "c + at * pitch + pair + 8 * unit"
    function, load = _load_pair(dtype), f"load_pair({source})"
    if problem.alignment("d") == 2:
        function, load = _LOAD_TWO, f"load_two({source}, pair + 8 * unit + 1 < n)"
    # Where threads store as well, the compiler would keep the addresses of both from piece to piece.
    hide = '  asm volatile("" : "+r"(row), "+r"(column), "+r"(thread));\n' if copied(problem, "d") else ""
    head = _add_residual(" from device memory", fused)
    return f"""\
{function}
{head}(float (&d)[COUNT], const {element}* c, long long pitch, int row,
                                             int column, int m, int n, int thread{parameter}) {{
{hide}  const int first = row + thread / 32 * 16 + thread % 32 / 4;
  const int pair = column + COLUMN + thread % 4 * 2;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {{
    const int at = first + 8 * half;
    if (at >= m) continue;
    #pragma unroll
    for (int unit = 0; unit < WIDTH / 8; ++unit) {{
      if (pair + 8 * unit >= n) continue;
      const {pair} two = {load};
      const int j = (COLUMN / 8 + unit) * 4 + 2 * half;
      {_added(fused, "d[j]", first)}
      {_added(fused, "d[j + 1]", second)}
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
