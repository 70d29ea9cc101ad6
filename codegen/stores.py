"""How D leaves the registers: through chunks of shared memory and TMA, or straight to device memory.

A thread of a warpgroup holds pairs of neighbouring columns of rows thread/4 and thread/4 + 8 of its warp's 16. What has
16 bits goes to shared memory by stmatrix; other types by ordinary stores, in the same swizzle.
"""

from __future__ import annotations

from collections.abc import Callable

from ..space import OUT_DTYPE_BYTES, Problem, Schedule
from ..space.resources import SWIZZLE_BYTES, boxes_of_a_piece
from . import ptx
from .fusion import activation_function
from .pieces import Piece

Value = Callable[[str], str]
"""What becomes of an element on its way, as an expression of CUDA."""


def functions(problem: Problem, s: Schedule) -> list[str]:
    """Device functions that store pieces (`stage_piece`, and `stage_activated` where elements are activated as they are
    stored) or a whole tile (`store_direct`)."""
    if s.store == "direct":
        return [_store_direct(problem.out_dtype)]
    fused = problem.fused
    helpers = _HELPERS[OUT_DTYPE_BYTES[problem.out_dtype], s.swap_ab]
    if fused.activated != "stored":
        return [helpers + _stage(problem, s, "stage_piece", str)]
    activation = activation_function(fused.activation, problem.out_dtype)
    activated = _stage(problem, s, "stage_activated", "activation({})".format)
    if fused.aux:
        return [helpers + _stage(problem, s, "stage_piece", str), activation, activated]
    return [activation, helpers + activated]


def stage_function(problem: Problem, matrix: str) -> str:
    """The function that writes a piece of a matrix (`d`, `aux`, `aux_up`) to its chunk."""
    return "stage_activated" if matrix == "d" and problem.fused.activated == "stored" else "stage_piece"


def _stage(problem: Problem, s: Schedule, name: str, value: Value) -> str:
    """The function `name`: registers to a chunk, which a TMA store reads or threads do."""
    match OUT_DTYPE_BYTES[problem.out_dtype]:
        case 2:
            fused = problem.fused
            # Loads of a residual from device memory keep activations apart by themselves.
            apart = fused.activation != "" and not (fused.activated == "added" and s.residual_buffers == 0)
            return _stage_16_bits(name, value, apart, s.store == "tma")
        case 4:
            return _stage_fp32_transposed(name, value) if s.swap_ab else _stage_fp32(name, value)
        case _:
            return _stage_fp8_transposed(name, value) if s.swap_ab else _stage_fp8(name, value)


def store_piece(problem: Problem, s: Schedule, piece: Piece, matrix: str, chunk: str) -> list[str]:
    """Lines that store a chunk to a matrix (`d`, `aux`): one box, or as many as a transposed piece takes."""
    boxes = boxes_of_a_piece(problem, s)
    lines = []
    for box in range(boxes):
        source = f"{chunk} + {box * piece.width * SWIZZLE_BYTES}" if box else chunk
        place = piece.place(problem, s, 64 // boxes * box)
        lines.append(f"if (thread == 0) tma_store(map_{matrix}{piece.width}, {place}, {source});")
    return lines


_PIECE_ADDRESS = """\
// The row of 8x8 blocks that a lane addresses for columns 8 * unit and on of a piece: 64 rows of WIDTH elements in the
// swizzle of their tensor map, 16-byte units exchanged so that eight consecutive rows fall into different banks.
template <int WIDTH>
__device__ __forceinline__ u32 piece_address(u32 chunk, int unit, int thread) {
  const int row = thread / 32 * 16 + thread % 16;
  const u32 exchange = row / (64 / WIDTH) % (WIDTH / 8);
  const int second = WIDTH == 8 ? 0 : thread % 32 / 16;
  return chunk + row * WIDTH * 2 + ((unit + second) ^ exchange) * 16;
}"""

_PIECE_ADDRESS_TRANSPOSED = """\
// The row of transposed 8x8 blocks that a lane addresses for columns 8 * unit and on of a piece, which are rows of 64
// elements in shared memory, with the 128-byte swizzle.
template <int WIDTH>
__device__ __forceinline__ u32 piece_address(u32 chunk, int unit, int thread) {
  const int lane = thread % 32;
  const u32 place = thread / 32 * 2 + lane / 8 % 2;  // of 16 bytes in a row: this warp's 16 elements
  const int second = WIDTH == 8 ? 0 : lane / 16;
  return chunk + ((unit + second) * 8 + lane % 8) * 128 + (place ^ lane % 8) * 16;
}"""


_STORE_FLOATS = """\
__device__ __forceinline__ void store_pair(u32 target, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(target), "f"(first), "f"(second) : "memory");
}
"""

_STORE_FLOAT = """\
__device__ __forceinline__ void store_float(u32 target, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(target), "f"(value) : "memory");
}
"""

_STORE_BYTES = """\
__device__ __forceinline__ void store_pair(u32 target, unsigned short two) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(target), "h"(two) : "memory");
}
"""

_STORE_BYTE = """\
__device__ __forceinline__ void store_byte(u32 target, u32 byte) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(target), "r"(byte) : "memory");
}
"""

_HELPERS = {
    (2, False): _PIECE_ADDRESS + "\n\n",
    (2, True): _PIECE_ADDRESS_TRANSPOSED + "\n\n",
    (4, False): _STORE_FLOATS,
    (4, True): _STORE_FLOAT,
    (1, False): _STORE_BYTES,
    (1, True): _STORE_BYTE,
}
"""What stores elements of so many bytes, of an output that is transposed or not."""


def _stage_16_bits(name: str, value: Value, apart: bool, by_tma: bool) -> str:
    """`apart` separates activations that the compiler would do all at once."""
    barrier = (
        """
      __syncwarp();  // ends a basic block: activations of the whole piece at once would not find registers"""
        if apart
        else ""
    )
    reader, fence = ("a TMA store", "\n  proxy_fence();") if by_tma else ("threads", "")

    def packed(place: int) -> str:
        first, second = (f"d[j + {i}]" if i else "d[j]" for i in (place, place + 1))
        return f"pack({value(first)}, {value(second)})"

    def gap(indent: int) -> str:
        return " " if len(packed(0)) < 20 else "\n" + " " * indent

    return f"""\
// Writes columns COLUMN .. COLUMN + WIDTH of a 64-row block to shared memory, for {reader} to read.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void {name}(const float (&d)[COUNT], u32 chunk, int thread) {{
  if constexpr (WIDTH == 8) {{
    constexpr int j = COLUMN / 2;
    stmatrix_x2(piece_address<8>(chunk, 0, thread), {packed(0)},{gap(16)}{packed(2)});
  }} else {{
    #pragma unroll
    for (int unit = 0; unit < WIDTH / 8; unit += 2) {{
      const int j = (COLUMN / 8 + unit) * 4;
      stmatrix_x4(piece_address<WIDTH>(chunk, unit, thread), {packed(0)},{gap(18)}{packed(2)},
                  {packed(4)},{gap(18)}{packed(6)});{barrier}
    }}
  }}{fence}
}}"""


def _stage_fp32(name: str, value: Value) -> str:
    first, second = "swapped ? d[other] : d[j]", "swapped ? d[other + 1] : d[j + 1]"
    return f"""\
// Writes columns COLUMN .. COLUMN + WIDTH of a 64-row block to shared memory, for a TMA store to read: rows of WIDTH
// elements in the swizzle of their tensor map. Rows whose 16-byte units are exchanged by an odd number begin with the
// second half of the piece, so that the pairs of four rows, which are stored at once, fall into different banks.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void {name}(const float (&d)[COUNT], u32 chunk, int thread) {{
  constexpr int HALF = WIDTH / 16;  // blocks of eight columns
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const u32 exchange = row / (32 / WIDTH) % (WIDTH / 4);
  const bool swapped = HALF > 0 && exchange % 2;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {{
    const u32 unit = (thread % 4 / 2 ^ exchange) ^ (swapped ? 2 * HALF : 0);
    const u32 target = chunk + (row + 8 * half) * WIDTH * 4 + unit * 16 + thread % 2 * 8;
    #pragma unroll
    for (int block = 0; block < WIDTH / 8; ++block) {{
      const int j = (COLUMN / 8 + block) * 4 + 2 * half, other = (COLUMN / 8 + (block ^ HALF)) * 4 + 2 * half;
      store_pair(target ^ block * 32, {value(first)}, {value(second)});
    }}
  }}
  proxy_fence();
}}"""


def _stage_fp32_transposed(name: str, value: Value) -> str:
    element = value("d[(COLUMN / 8 + block) * 4 + i]")
    return f"""\
// Writes columns COLUMN .. COLUMN + WIDTH of a 64-row block, transposed, to shared memory, for TMA stores to read: rows
// of 32 elements with the 128-byte swizzle, for rows 0 .. 31 of the block and then for rows 32 .. 63.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void {name}(const float (&d)[COUNT], u32 chunk, int thread) {{
  const int place = thread / 32 % 2 * 16 + thread % 32 / 4;  // in a row
  #pragma unroll
  for (int i = 0; i < 4; ++i) {{
    const int row = thread % 4 * 2 + i % 2, column = place + i / 2 * 8;
    const u32 target = chunk + thread / 64 * WIDTH * 128 + row * 128 + (column / 4 ^ row) * 16 + column % 4 * 4;
    #pragma unroll
    for (int block = 0; block < WIDTH / 8; ++block) store_float(target + block * 1024, {element});
  }}
  proxy_fence();
}}"""


def _stage_fp8(name: str, value: Value) -> str:
    return f"""\
// Writes columns COLUMN .. COLUMN + WIDTH of a 64-row block to shared memory, for a TMA store to read: rows of WIDTH
// bytes in the swizzle of their tensor map, so that eight consecutive rows fall into different banks.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void {name}(const float (&d)[COUNT], u32 chunk, int thread) {{
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const u32 exchange = row / (128 / WIDTH) % (WIDTH / 16);
  #pragma unroll
  for (int half = 0; half < 2; ++half) {{
    const u32 target = chunk + (row + 8 * half) * WIDTH + exchange * 16 + thread % 4 * 2;
    #pragma unroll
    for (int block = 0; block < WIDTH / 8; ++block) {{
      const int j = (COLUMN / 8 + block) * 4 + 2 * half;
      store_pair(target ^ block * 8, pack({value("d[j]")}, {value("d[j + 1]")}));
    }}
  }}
  proxy_fence();
}}"""


def _stage_fp8_transposed(name: str, value: Value) -> str:
    return f"""\
// Writes columns COLUMN .. COLUMN + WIDTH of a 64-row block, transposed, to shared memory, for a TMA store to read:
// rows of 64 bytes with the 64-byte swizzle.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void {name}(const float (&d)[COUNT], u32 chunk, int thread) {{
  #pragma unroll
  for (int half = 0; half < 2; ++half) {{
    const u32 unit = thread / 32 ^ thread % 4;
    const u32 target = chunk + thread % 4 * 128 + unit * 16 + thread % 32 / 4 + 8 * half;
    #pragma unroll
    for (int block = 0; block < WIDTH / 8; ++block) {{
      const int j = (COLUMN / 8 + block) * 4 + 2 * half;
      const u32 two = pack({value("d[j]")}, {value("d[j + 1]")});
      store_byte(target + block * 512, two);
      store_byte(target + block * 512 + 64, two >> 8);
    }}
  }}
  proxy_fence();
}}"""


def _store_direct(out_dtype: str) -> str:
    element = ptx.C_TYPES[out_dtype]
    pair = {"fp32": "float2", "fp8": "unsigned short"}.get(out_dtype, "u32")
    first, second = "d[i][4 * j + 2 * half]", "d[i][4 * j + 2 * half + 1]"
    value = f"float2{{{first}, {second}}}" if out_dtype == "fp32" else f"pack({first}, {second})"
    return f"""\
// Each thread stores pairs of elements from its registers: rows thread/4 and thread/4 + 8 of its warp's 16.
template <int COUNT>
__device__ __forceinline__ void store_direct(const float (&d)[M64][COUNT], {element}* target, long long pitch,
                                             int row, int column, int m, int n) {{
  const int thread = threadIdx.x % 128;
  const int first = row + thread / 32 * 16 + thread % 32 / 4;
  const int pair = column + thread % 4 * 2;
  #pragma unroll
  for (int i = 0; i < M64; ++i) {{
    #pragma unroll
    for (int half = 0; half < 2; ++half) {{
      const int at = first + 64 * i + 8 * half;
      if (at >= m) continue;
      #pragma unroll
      for (int j = 0; j < COUNT / 4; ++j)
        if (pair + 8 * j < n)
          *({pair}*)(target + at * pitch + pair + 8 * j) = {value};
    }}
  }}
}}"""
