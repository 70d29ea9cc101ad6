"""Rows that TMA does not take: a producer warpgroup whose threads copy them to the ring of stages, in the swizzle that
TMA would have written, and consumers that copy chunks of results to D.

What ordinary instructions write, the tensor cores read through the copy engine's proxy: each thread waits for its own
copies, fences, and only then arrives at the stage's mbarrier.
"""

from __future__ import annotations

from ..space import OUT_DTYPE_BYTES, Problem, Schedule
from ..space.resources import OperandTile, copied, operand_tiles
from .pieces import Piece
from .producer import corner_of, first_block, load_operand, ready_barrier
from .walk import loop, product

MOST_LOADED = 64
"""Elements that a thread keeps in registers on their way, where they are too small for asynchronous copies."""


def lag(s: Schedule) -> int:
    """K-blocks that are under way when a stage is handed over: half of the ring, but never so many that the stage which
    the producer waits for depends on one not handed over. With `mma_in_flight` that is one stage more."""
    return max(0, min(s.stages // 2, s.stages - 1 - s.mma_in_flight))


def full_arrivals(problem: Problem, s: Schedule) -> int:
    """Arrivals that fill a stage: all threads that copy, and the one that has TMA load the other operand."""
    if s.load == "tma":
        return 1
    return 128 + any(not copied(problem, operand) for operand in "ab")


def copying_producer(problem: Problem, s: Schedule, leave: str) -> str:
    """The branch of the producer warpgroup, up to and with its return."""
    tiles = dict(zip("ab", operand_tiles(problem, s), strict=True))
    by_threads = {name: tile for name, tile in tiles.items() if copied(problem, tile.operand)}
    by_tma = {name: tile for name, tile in tiles.items() if name not in by_threads}
    asynchronous = any(problem.alignment(tile.operand) > 2 for tile in by_threads.values())
    lines = [
        "  if (warpgroup == 0) {",
        f"    if (warp == 0) named_arrive({ready_barrier(s)});  // mbarriers are ready",
        f"    else named_sync({ready_barrier(s)});",
        "    const int thread = threadIdx.x;",
    ]
    if s.dependent_launch:
        lines += ["    launch_dependents();", "    wait_for_dependencies();"]
    for name, tile in by_threads.items():
        lines += _copy_operand(problem, name, tile)
    for name, tile in by_tma.items():
        lines += [line[2:] for line in load_operand(problem, s, name, tile, alone=True)]
    lines += [
        "    Ring<STAGES> ring{0, 0};",
        *(["    Ring<STAGES> landed{0, 0};", "    int under_way = 0;"] if asynchronous else []),
        "    bool backwards = false;",
        *("    " + line for line in loop(s)),
        "      const Position at = tile_position(tile, walk);",
        "      // From 0, and to the compiler a number of each thread: uniform registers are left to the consumers.",
        "      #pragma unroll 1",
        "      for (int block = thread / 128; block < k_blocks; ++block) {",
        f"        const int column = ({first_block(s)}(backwards ? k_blocks - 1 - block : block)) * TILE_K;",
        "        mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);",
    ]
    for name in by_tma:
        lines += [
            "        if (warp == 0 && elect_one()) {",
            f"          mbarrier_expect(full + 8 * ring.stage, {name.upper()}_STAGE);",
            f"          load_{name}(ring.stage, column, {corner_of(problem, name)});",
            "        }",
            "        __syncwarp();",
        ]
    lines += [f"        copy_{name}(ring.stage, column, {corner_of(problem, name)});" for name in by_threads]
    if asynchronous:
        lines += [
            "        commit_copies();",
            "        if (++under_way > LAG) {",
            "          wait_for_copies<LAG>();",
            "          proxy_fence();",
            "          mbarrier_arrive(full + 8 * landed.stage);",
            "          landed.next();",
            "          --under_way;",
            "        }",
        ]
    else:
        lines += ["        proxy_fence();", "        mbarrier_arrive(full + 8 * ring.stage);"]
    lines += ["        ring.next();", "      }", "      backwards = k_zigzag && !backwards;", "    }"]
    if asynchronous:
        lines += [
            "    wait_for_copies<0>();",
            "    proxy_fence();",
            "    for (; under_way > 0; --under_way, landed.next()) mbarrier_arrive(full + 8 * landed.stage);",
        ]
    if leave:
        lines.append("  " + leave)
    lines += ["    return;", "  }"]
    return "\n".join(lines)


def _copy_operand(problem: Problem, name: str, tile: OperandTile) -> list[str]:
    """A lambda that fills one operand of a stage."""
    upper = name.upper()
    extent = "m" if name == "a" else "n"
    across, along, columns, rows = ("column", "row", "k", extent) if tile.k_major else ("row", "column", extent, "k")
    piece = problem.alignment(tile.operand)
    rows_of = f"{upper}_ROWS"
    if piece == 2:
        rows_of += f", {_batch(tile.slab_rows)}"
    return [
        f"    auto copy_{name} = [&](u32 stage, int column, int row{', int product' * problem.batched}) {{",
        f"      const unsigned short* const matrix = {name}{f' + product * {name}_batch' * problem.batched};",
        "      #pragma unroll 1",
        f"      for (int slab = 0; slab < {upper}_SLABS; ++slab)",
        f"        copy_slab{piece}<{rows_of}>(smem + SMEM_{upper} + stage * {upper}_STAGE + slab * {upper}_SLAB,",
        f"            matrix, {name}_pitch, {along}, {across} + slab * 64, {rows}, {columns}, thread);",
        "    };",
    ]


def _batch(rows: int) -> int:
    """Loads of single elements that a thread has on their way at once; two rows take one of each thread."""
    return max(size for size in range(1, MOST_LOADED + 1) if rows // 2 % size == 0)


def constants(problem: Problem, s: Schedule) -> list[str]:
    """How far copies run ahead."""
    sizes = [problem.alignment(operand) for operand in "ab" if copied(problem, operand)]
    if s.load == "tma" or max(sizes) == 2:
        return []
    return ["", f"constexpr int LAG = {lag(s)};  // k-blocks whose copies are under way when a stage is handed over"]


def functions(problem: Problem, s: Schedule) -> list[str]:
    """Device functions that copy."""
    sizes = {problem.alignment(operand) for operand in "ab" if copied(problem, operand)} if s.load == "copy" else set()
    found = []
    if any(size > 2 for size in sizes):
        found.append(_COPIES)
    if 2 in sizes:
        found.append(_STORE_ELEMENT)
    found += [_COPY_ELEMENTS if size == 2 else _copy_pieces(size) for size in sorted(sizes)]
    if s.store == "copy":
        found.append(_store_chunk(problem.alignment("d") // OUT_DTYPE_BYTES[problem.out_dtype]))
    return found


def store(problem: Problem, s: Schedule, piece: Piece, chunk: str) -> str:
    """The call that stores a piece from its chunk."""
    column = "column" if piece.column == 0 else f"column + {piece.column}"
    shape, place, extents = f"64, {piece.width}", f"{piece.row}, {column}", "m, n"
    if s.swap_ab:
        shape, place, extents = f"{piece.width}, 64", f"{column}, {piece.row}", "n, m"
    return f"store_chunk<{shape}>({chunk}, {product('d', problem)}, d_pitch, {place}, {extents}, thread);"


_COPIES = """\
// Copies BYTES to shared memory, the first `inside` of them from `source` and zeros for the others.
template <int BYTES>
__device__ __forceinline__ void copy_async(u32 target, const void* source, int inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               ::"r"(target), "l"(source), "n"(BYTES), "r"(inside) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns when at most PENDING of this thread's groups of copies are under way.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}"""


def _copy_pieces(size: int) -> str:
    elements = size // 2
    lanes = 64 // elements
    return f"""\
// Copies 64 columns of ROWS rows to a slab in pieces of {size} bytes, {lanes} threads a row. Outside are zeros.
template <int ROWS>
__device__ __forceinline__ void copy_slab{size}(u32 slab, const unsigned short* matrix, long long pitch, int row,
                                           int column, int rows, int columns, int thread) {{
  const int place = thread % {lanes} * {elements};
  const int inside = max(0, min({elements}, columns - column - place)) * 2;
  #pragma unroll 4
  for (int i = 0; i < ROWS / {128 // lanes}; ++i) {{
    const int at = thread / {lanes} + i * {128 // lanes};
    const bool real = row + at < rows && inside > 0;
    copy_async<{size}>(slab + at * 128 + (place / 8 ^ at % 8) * 16 + place % 8 * 2,
                  real ? matrix + (row + at) * pitch + column + place : matrix, real ? inside : 0);
  }}
}}"""


_STORE_ELEMENT = """\
__device__ __forceinline__ void store_element(u32 target, unsigned short value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(target), "h"(value) : "memory");
}"""

_COPY_ELEMENTS = """\
// Copies 64 columns of ROWS rows to a slab, element by element, 64 threads a row. Outside are zeros.
template <int ROWS, int BATCH>
__device__ __forceinline__ void copy_slab2(u32 slab, const unsigned short* matrix, long long pitch, int row,
                                           int column, int rows, int columns, int thread) {
  const int place = thread % 64;
  const bool inside = column + place < columns;
  const unsigned short* source = matrix + (row + thread / 64) * pitch + column + place;
  #pragma unroll 1
  for (int first = thread / 64; first < ROWS; first += 2 * BATCH) {
    unsigned short values[BATCH];
    #pragma unroll
    for (int i = 0; i < BATCH; ++i, source += 2 * pitch) values[i] = inside && row + first + 2 * i < rows ? *source : 0;
    #pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int at = first + 2 * i;
      store_element(slab + at * 128 + (place / 8 ^ at % 8) * 16 + place % 8 * 2, values[i]);
    }
  }
}"""


def _store_chunk(elements: int) -> str:
    piece = {1: "", 2: "u32", 4: "uint2"}[elements]
    edge, inside, copy = "", "column + place < columns", "*target = *source;"
    if elements > 1:
        inside = f"column + place + {elements} <= columns"
        copy = f"*({piece}*)target = *(const {piece}*)source;"
        edge = f"""
    else
      for (int e = 0; e < {elements}; ++e)
        if (column + place + e < columns) target[e] = source[e];"""
    return f"""\
// Stores a chunk of ROWS x COLUMNS elements, in the swizzle of `stage_piece`, to where D has them.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void store_chunk(const unsigned char* chunk, unsigned short* d, long long pitch, int row,
                                            int column, int rows, int columns, int thread) {{
  constexpr int LANES = {f"COLUMNS / {elements}" if elements > 1 else "COLUMNS"};
  const int place = thread % LANES{f" * {elements}" if elements > 1 else ""};
  // Hides where it comes from: the compiler would keep addresses from piece to piece.
  asm volatile("" : "+r"(row), "+r"(column), "+r"(thread));
  #pragma unroll 4
  for (int i = 0; i < ROWS * LANES / 128; ++i) {{
    const int at = thread / LANES + i * (128 / LANES);
    if (row + at >= rows) continue;
    const u32 exchange = at / (64 / COLUMNS) % (COLUMNS / 8);
    const unsigned short* const source =
        (const unsigned short*)(chunk + at * COLUMNS * 2 + (place / 8 ^ exchange) * 16 + place % 8 * 2);
    unsigned short* const target = d + (row + at) * pitch + column + place;
    if ({inside}) {copy}{edge}
  }}
}}"""
