"""The walk of a CTA over its work: which tile comes next, and which of its k-blocks."""

from __future__ import annotations

from ..space import PINGPONG, Problem, Schedule, TileGrid, ceil_div

FIELDS = (
    "tiles_m",
    "tiles_n",
    "raster_n",
    "swizzle",
    "serpentine",
    "band_factor",
    "band_shift",
    "height_factor",
    "height_shift",
    "last_factor",
    "last_shift",
)
"""The fields of the kernel's `Walk`; factor and shift divide by tiles of a band, height of a band and of the last."""

BATCH_FIELDS = ("product_factor", "product_shift")
"""Those it also has with a batch: they divide by tiles of one product."""


def initial(problem: Problem) -> str:
    """What the kernel initialises its `Walk` with."""
    lines = [FIELDS[:5], FIELDS[5:], *([BATCH_FIELDS] if problem.batched else [])]
    return (",\n" + " " * 18).join(", ".join(names) for names in lines)


def values(grid: TileGrid, schedule: Schedule) -> tuple[int, ...]:
    """The `Walk` of `schedule` over `grid`: the values of its fields, 32 bits each."""
    fast, slow = (grid.m, grid.n) if schedule.raster == "m" else (grid.n, grid.m)
    last = fast - (ceil_div(fast, schedule.swizzle) - 1) * schedule.swizzle
    return (
        grid.m,
        grid.n,
        int(schedule.raster == "n"),
        schedule.swizzle,
        int(schedule.serpentine),
        *_as_ints(*divisor(schedule.swizzle * slow)),
        *_as_ints(*divisor(schedule.swizzle)),
        *_as_ints(*divisor(last)),
        *(_as_ints(*divisor(grid.m * grid.n)) if grid.batch > 1 else ()),
    )


def parameters(problem: Problem) -> list[str]:
    """The kernel parameters that the fields are passed in, a few to a line."""
    lines = [", ".join(f"int {name}" for name in FIELDS[:5]), ", ".join(f"u32 {name}" for name in FIELDS[5:])]
    return lines + [", ".join(f"u32 {name}" for name in BATCH_FIELDS)] * problem.batched


def divisor(d: int) -> tuple[int, int]:
    """(factor, shift) such that n // d == n * factor >> shift for 0 <= n < 2^31, with factor < 2^32.

    Granlund and Montgomery, Division by invariant integers using multiplication (PLDI 1994), theorem 4.2.
    """
    shift = 31 + (d - 1).bit_length()
    return -(-(1 << shift) // d), shift


def _as_ints(factor: int, shift: int) -> tuple[int, int]:
    """The bits of an unsigned factor as a signed 32-bit argument."""
    return factor - (1 << 32 if factor >= 1 << 31 else 0), shift


def _tile_position(batched: bool) -> str:
    """`Walk`, `Position` and `tile_position`, which says where a tile lies."""
    comment = "The walk over cluster tiles:"
    factors, position, batch, product = "", "m, n", "", ""
    if batched:
        comment = "The walk over cluster tiles, one product of the batch after the other. In each,\n//"
        factors, position, batch = ",\n      product_factor, product_shift", "m, n, batch", ", batch"
        product = """\
  const int batch = divide(index, walk.product_factor, walk.product_shift);
  index -= batch * walk.tiles_m * walk.tiles_n;
"""
    return f"""\
// {comment} bands of `swizzle` tiles along the raster axis; consecutive tiles run along it,
// then step along the other axis. The last band is as tall as what is left. Serpentine: odd bands run backwards.
struct Walk {{
  int tiles_m, tiles_n, raster_n, swizzle, serpentine;
  u32 band_factor, band_shift, height_factor, height_shift, last_factor, last_shift{factors};
}};
struct Position {{ int {position}; }};
// Division by a divisor that the host has turned into a multiplication: a dozen cycles instead of two hundred.
__device__ __forceinline__ int divide(int n, u32 factor, u32 shift) {{ return (u64)n * factor >> shift; }}
__device__ __forceinline__ Position tile_position(int index, const Walk& walk) {{
{product}  const int fast_tiles = walk.raster_n ? walk.tiles_n : walk.tiles_m;
  const int slow_tiles = walk.raster_n ? walk.tiles_m : walk.tiles_n;
  const int band = divide(index, walk.band_factor, walk.band_shift);
  const int offset = index - band * walk.swizzle * slow_tiles;
  const int left = fast_tiles - band * walk.swizzle;
  const bool last = left <= walk.swizzle;
  int slow = divide(offset, last ? walk.last_factor : walk.height_factor, last ? walk.last_shift : walk.height_shift);
  const int fast = band * walk.swizzle + offset - slow * (last ? left : walk.swizzle);
  if (walk.serpentine && (band & 1)) slow = slow_tiles - 1 - slow;
  return walk.raster_n ? Position{{slow, fast{batch}}} : Position{{fast, slow{batch}}};
}}"""


_WORK = """\
// A unit of work: k-blocks of a tile. A tile that is cut into parts is added up in the workspace.
struct Work {
  int tile;  // negative when there is no more
  int first_block, k_blocks;
  int part, parts;
  int slot, next_slot;  // of the workspace, where parts 0 and 1 are kept; later ones follow SLOT_STEP apart
};
"""


def _split_work(s: Schedule) -> str:
    """`work` where SPLIT_K CTAs share the K of each tile, in stretches or in turn."""
    comment, first = "", "first, end - first"
    share = """\
  const int first = all_blocks * part / SPLIT_K;
  const int end = all_blocks * (part + 1) / SPLIT_K;"""
    if s.interleave_k:
        comment, first = (
            "// The parts of a tile take its k-blocks in turn: what they load at a time lies side by side.\n",
            "part, blocks",
        )
        share = "  const int blocks = (all_blocks - part + SPLIT_K - 1) / SPLIT_K;"
    tile, part, last = "index / SPLIT_K", "index % SPLIT_K", "tile < tiles"
    if s.parts_apart:
        comment += "// Neighbours take the same part of different tiles: L2 answers their loads of a line together.\n"
        tile, part, last = "index % tiles", "index / tiles", "part < SPLIT_K"
    return f"""\
{comment}__device__ __forceinline__ Work work(int unit, int worker, int workers, int tiles, int all_blocks) {{
  const int index = worker + unit * workers;
  const int tile = {tile}, part = {part};
{share}
  return {{{last} ? tile : -1, {first}, part, SPLIT_K, tile * SPLIT_K, tile * SPLIT_K + 1}};
}}"""


def cluster_share(s: Schedule) -> list[str]:
    """Lines that define `first_block` and `k_blocks` of a CTA of a cluster that shares the K of a tile."""
    if s.interleave_k:
        return [
            "  const int first_block = rank;  // of every SPLIT_K, so that the CTAs read side by side",
            "  const int k_blocks = (all_blocks - first_block + SPLIT_K - 1) / SPLIT_K;",
        ]
    return [
        "  const int first_block = all_blocks * rank / SPLIT_K;",
        "  const int k_blocks = all_blocks * (rank + 1) / SPLIT_K - first_block;",
    ]


_STREAM_WORK = """\
// Stream-K: whole tiles as long as they fill the device, then equal shares of the k-blocks that are left. A share
// has at most two ends inside a tile: a worker keeps its first segment in slot 2 * worker, its last in the next.
__device__ __forceinline__ Work work(int unit, int worker, int workers, int tiles, int all_blocks) {
  const int waves = tiles % workers == 0 ? tiles / workers : max(0, tiles / workers - 1);
  if (unit < waves) return {worker + unit * workers, 0, all_blocks, 0, 1, 0, 0};
  const int whole = waves * workers;
  const u32 blocks = (tiles - whole) * all_blocks;  // times the workers below 2^32, as the rules see to
  if (blocks == 0) return {-1, 0, 0, 0, 1, 0, 0};
  const u32 begin = blocks * worker / workers, end = blocks * (worker + 1) / workers;
  const int tile = begin / all_blocks + unit - waves;
  const u32 start = tile * all_blocks;
  const int first = max(begin, start) - start, last = (int)(min(end, start + all_blocks) - start);
  // The worker of block b is the last whose share begins at or before it.
  const int first_worker = ((start + 1) * workers - 1) / blocks;
  const int last_worker = ((start + all_blocks) * workers - 1) / blocks;
  const int carried = blocks * first_worker / workers < start;
  return {first < last ? whole + tile : -1, first, last - first, worker - first_worker, last_worker - first_worker + 1,
          2 * first_worker + carried, 2 * first_worker + 2};
}"""


FIRST_ROW = "(at.m * CLUSTER_M + cluster_row) * TILE_M"
"""The first row of the CTA's tile in what the kernel computes: a CUDA expression of a `Position` called `at`."""


def d_columns(problem: Problem) -> str:
    """The columns of D, or of its transpose, as a CUDA expression: those of what the kernel computes, or of a gate."""
    return "n / 2" if problem.fused.gated else "n"


def first_column(problem: Problem) -> str:
    """The first column of the CTA's tile, likewise: of a gate where there is one, and so of D."""
    return f"(at.n * CLUSTER_N + cluster_column) * {'(TILE_N / 2)' if problem.fused.gated else 'TILE_N'}"


def functions(problem: Problem, s: Schedule) -> list[str]:
    """Device functions of the walk."""
    position = _tile_position(problem.batched)
    if not s.workspace:
        return [position]
    return [position, _WORK + (_STREAM_WORK if s.stream_k else _split_work(s))]


def product(pointer: str, problem: Problem) -> str:
    """A CUDA expression: the matrix at `pointer` that belongs to the product of the `Position` called `at`."""
    return f"{pointer} + at.batch * {pointer}_batch" if problem.batched else pointer


def stretch(problem: Problem, s: Schedule) -> list[str]:
    """Lines that define `tiles`, where the walk ends; and its first tile and step where every CTA takes neighbours."""
    tiles = "tiles_m * tiles_n" + " * batch" * problem.batched
    if not s.held_blocks:
        return [f"  const int tiles = {tiles};"]
    return [
        "  // Neighbours in the walk, so that columns stay: of all tiles those from the first up to `tiles`, in the",
        "  // first CTAs one more.",
        f"  const u32 all_tiles = {tiles}, share = all_tiles / gridDim.x, larger = all_tiles % gridDim.x;",
        "  const int first_tile = share * blockIdx.x + min(blockIdx.x, larger), tile_step = 1;",
        "  const int tiles = first_tile + share + (blockIdx.x < larger);",
    ]


def places(s: Schedule, cluster: str = "") -> list[str]:
    """Lines that define `first_tile`, where a CTA begins in the walk, and `tile_step`; `cluster` is a CUDA expression
    of how many CTAs begin at one place."""
    each = f" / {cluster}" if cluster else ""
    if s.hands == 1:
        return [f"  const int first_tile = blockIdx.x{each}, tile_step = gridDim.x{each};"]
    return [
        f"  // A wave of tiles is cut into {s.hands} stretches, in which CTAs begin in turn: those launched one after",
        "  // the other, which run in one GPC, work far apart.",
        f"  const u32 place = blockIdx.x{each}, places = gridDim.x{each}, hand = place % {s.hands};",
        f"  const int first_tile = hand * (places / {s.hands}) + min(hand, places % {s.hands}) + place / {s.hands};",
        "  const int tile_step = places;",
    ]


def loop(s: Schedule, first: str = "first_tile", step: str = "tile_step", warps: bool = False) -> list[str]:
    """The head of the loop over tiles, which defines `tile`, and `unit_work` and `k_blocks` where tiles are cut.

    `warps` tells that whole warps run it: the compiler is then told that all their lanes see the same `k_blocks`.
    """
    if not s.workspace:
        return [f"for (int tile = {first}; tile < tiles; tile += {step}) {{"]
    return [
        "for (int unit = 0;; ++unit) {",
        "  const Work unit_work = work(unit, first_tile, tile_step, tiles, all_blocks);",
        "  if (unit_work.tile < 0) break;",
        "  const int tile = unit_work.tile;",
        "  const int k_blocks = "
        + ("__shfl_sync(0xffffffff, unit_work.k_blocks, 0);" if warps else "unit_work.k_blocks;"),
    ]


def consumer_loop(s: Schedule, warps: bool = False) -> list[str]:
    """`loop` over the tiles of `consumer`: ping-pong warpgroups take every other tile, cooperative ones all."""
    if s.arrangement == PINGPONG:
        return loop(s, "first_tile + consumer * tile_step", "2 * tile_step", warps)
    return loop(s, warps=warps)
