"""(problem, schedule) -> one self-contained CUDA source.

The source is put together from the parts a reader will look for: constants, primitives, the walk over tiles,
the producer, the consumers with their main loop, the epilogue. Shapes are run-time arguments, and so is every
choice in `space.LAUNCH_FIELDS`: one source serves all problems of a kind and all launches of a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..space import DTYPE_BYTES, GEMV, OUT_DTYPE_BYTES, PINGPONG, PROMOTED, Problem, Schedule, shared_memory
from ..space.generations import last_change
from ..space.problem import PROMOTED_K
from ..space.resources import (
    OperandTile,
    copied,
    empty_arrivals,
    exchange_slots,
    operand_tiles,
    piece_count,
    stage_readers,
)
from . import copying, epilogue, fusion, gemv, ptx, scales, walk
from .consumer import consumer
from .plan import map_rank, staged_matrices, store_widths
from .producer import early_fill, load_flags, loads, producer

GENERATOR_VERSION = "7"
"""Raised when generated code changes in a way that can change a time. `space.generations` says of which kernels: older
measurements of those are then stale."""

ENTRY = "tileseek_matmul"


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A CUDA translation unit and the name of its kernel."""

    text: str
    entry: str


def generate(problem: Problem, schedule: Schedule) -> KernelSource:
    """The kernel of `schedule` for problems of `problem.kind`; both must be valid together.

    The text depends on nothing but `problem.kind` and `schedule.kernel`.
    """
    if schedule.arrangement == GEMV:
        parts = [_title(problem, schedule), *gemv.parts(problem, schedule, ENTRY)]
        return KernelSource("\n\n".join(parts) + "\n", ENTRY)
    parts = [
        _title(problem, schedule),
        ptx.TYPES,
        _constants(problem, schedule),
        *_primitives(problem, schedule),
        *walk.functions(problem, schedule),
        *epilogue.functions(problem, schedule),
        _kernel(problem, schedule),
    ]
    return KernelSource("\n\n".join(parts) + "\n", ENTRY)


def _title(problem: Problem, s: Schedule) -> str:
    a = "A[m, k]" if problem.a_major == "k" else "A[k, m]^T"
    b = "B[n, k]^T" if problem.b_major == "k" else "B[k, n]"
    product = _formula(problem, f"{a} x {b}")
    if problem.batched:
        product += ", for each of a batch"
    if s.swap_ab:
        product += ",\n// " if problem.fused.scales else ", "
        product += "computed as its transpose: below, A is B and m is n"
    if s.arrangement == PINGPONG:
        roles = "two consumer warpgroups that own alternate tiles (ping-pong)"
    else:
        roles = "one consumer warpgroup" if s.consumers == 1 else f"{s.consumers} consumer warpgroups that share a tile"
    if s.arrangement == GEMV:
        return f"""\
// tileseek generator {last_change(problem, s)}: {s.name}
//
// {product}.
// {_arithmetic(problem)}, all row-major.
{gemv.roles(problem, s)}"""
    feeds = f"one thread feeds a ring of {s.stages} stages by TMA"
    if s.load == "copy":
        feeds = f"all threads copy rows that TMA does not take to a ring of {s.stages} stages"
    return f"""\
// tileseek generator {last_change(problem, s)}: {s.kernel.name}
// Persistence, raster, swizzles and L2 promotion belong to the launch; the name has them at their defaults.
//
// {product}.
// {_arithmetic(problem)}, all row-major.
// One producer warpgroup, of which {feeds},
// and {roles}."""


def _arithmetic(problem: Problem) -> str:
    """The types of operands, sums and results."""
    result = "and" if problem.out_dtype == problem.dtype else f"and {problem.out_dtype}"
    sums = "fp32 accumulation"
    if DTYPE_BYTES[problem.dtype] == 1:
        promoted = problem.accumulate == PROMOTED
        sums = f"sums of {PROMOTED_K} of k added up in fp32" if promoted else "accumulation in tensor cores"
    return f"{problem.dtype} operands {result} result, {sums}"


_SCALES = {"scale": "scale", "scale_m": "scale_m[m]", "scale_n": "scale_n[n]"}


def _formula(problem: Problem, product: str) -> str:
    """The epilogue written around a product, what it gives by a name in several steps."""
    fused = problem.fused
    product = "".join(f"{_SCALES[word]} * " for word in fused.scales) + product
    steps = []
    if fused.alpha:
        product = f"alpha * {product}"
    if fused.bias:
        product += f" + bias[{fused.bias}]"
    if fused.aux or fused.gated:
        name = "AUX" if fused.aux else "P"
        steps.append(f"{name}[m, n] = {product}")
        product = f"{name}[m, n]" if not fused.gated else f"{name}[m, j]"
    if fused.activation:
        product = f"{fused.activation}({product})"
    if fused.gated:
        product += f" * {'AUX' if fused.aux else 'P'}[m, n / 2 + j]"
    column = "j" if fused.gated else "n"
    if fused.residual:
        product += f" + {'beta * ' * fused.beta}C[m, {column}]"
    return ";\n// ".join([*steps, f"D[m, {column}] = {product}"])


def _constants(problem: Problem, s: Schedule) -> str:
    smem = shared_memory(problem, s)
    rows, columns = operand_tiles(problem, s)
    lines = [
        f"constexpr int TILE_M = {s.tile_m}, TILE_N = {s.tile_n}, TILE_K = {s.tile_k};  // CTA tile, elements",
        f"constexpr int STAGES = {s.stages};",
        *([f"constexpr int ALONE = {s.alone_stages};  // first stages, which no CTA shares"] if s.alone_stages else []),
        f"constexpr int CONSUMERS = {s.consumers}, THREADS = {s.threads};  // warpgroups, threads of a CTA",
        f"constexpr int CLUSTER_M = {s.cluster_m}, CLUSTER_N = {s.cluster_n};",
        f"constexpr int M64 = {s.m64_per_warpgroup};  // 64-row wgmma blocks of a warpgroup's tile",
        "",
        *_slab_comment(problem),
        *_slab_constants("A", rows),
        *_slab_constants("B", columns),
        "",
        "// Shared memory, byte offsets.",
        f"constexpr u32 SMEM_A = {smem.a};",
        f"constexpr u32 SMEM_B = {smem.b};",
    ]
    if s.staged:
        lines.append(f"constexpr u32 SMEM_EPILOGUE = {smem.epilogue};")
    if s.residual_buffers:
        lines.append(f"constexpr u32 SMEM_RESIDUAL = {smem.residual};")
    if problem.fused.bias:
        lines.append(f"constexpr u32 SMEM_BIAS = {smem.bias};")
    lines += scales.constants(problem, s, smem.scales)
    if s.split_cluster:
        lines.append(f"constexpr u32 SMEM_EXCHANGE = {smem.exchange};")
    lines += [f"constexpr u32 SMEM_FULL = {smem.barriers};", "constexpr u32 SMEM_EMPTY = SMEM_FULL + 8 * STAGES;"]
    if s.residual_buffers:
        lines.append("constexpr u32 SMEM_LANDED = SMEM_EMPTY + 8 * STAGES;")
    if s.workspace and not s.dealt:
        lines.append(f"constexpr u32 SMEM_VOTES = {smem.votes};")
    if s.reduction == "slots":
        lines.append(f"constexpr int SLOT_STEP = {2 if s.stream_k else 1};  // of the workspace")
    if s.split_cluster:
        rings = s.stages + s.residual_buffers * s.consumers
        lines.append(f"constexpr u32 SMEM_EXCHANGED = SMEM_FULL + 16 * {rings};")
    lines += copying.constants(problem, s)
    if s.staged:
        lines += [
            "",
            f"constexpr int BUFFERS = {s.epilogue_buffers};  // epilogue chunks of a warpgroup",
            f"constexpr u32 CHUNK = 64 * {s.epilogue_n} * {OUT_DTYPE_BYTES[problem.out_dtype]};  // bytes of one",
        ]
    lines += fusion.constants(problem, s)
    if s.split_k > 1:
        lines += ["", f"constexpr int SPLIT_K = {s.split_k};  // CTAs that share the K of a tile"]
    if s.workspace and s.dealt:
        pieces = piece_count(problem, s)
        lines += [
            f"constexpr int PIECES = {pieces}, OWNERS = {min(pieces, s.split_k)};"
            "  // of a warpgroup's tile; CTAs they are dealt to",
        ]
    if s.split_cluster:
        lines += [
            f"constexpr int EXCHANGE_SLOTS = {exchange_slots(problem, s)};  // pieces a warpgroup receives at most",
            f"constexpr u32 SLOT = 64 * {s.epilogue_n} * 4;  // bytes of one",
        ]
    return "\n".join(lines)


def _slab_comment(problem: Problem) -> list[str]:
    first = "// A stage holds slabs of each operand: rows of 128 bytes, 128-byte swizzle. K-major slabs are"
    if DTYPE_BYTES[problem.dtype] == 1:
        return [f"{first} 128 columns of", "// K wide."]
    return [f"{first} 64 columns of", "// K wide, MN-major ones 64 rows or columns of the tile."]


def _slab_constants(upper: str, tile: OperandTile) -> list[str]:
    major = "K-major" if tile.k_major else "MN-major"
    return [
        f"constexpr int {upper}_SLABS = {tile.slabs}, {upper}_ROWS = {tile.slab_rows};  // {major}",
        f"constexpr u32 {upper}_SLAB = {upper}_ROWS * 128, {upper}_STAGE = {upper}_SLABS * {upper}_SLAB;",
    ]


def _primitives(problem: Problem, s: Schedule) -> list[str]:
    rows, columns = operand_tiles(problem, s)
    pingpong = s.arrangement == PINGPONG
    split = s.split_cluster
    copies, by_tma = s.load == "copy", copying.full_arrivals(problem, s) != 128
    needed = {
        "elect_one": by_tma,
        "tensor_map_prefetch": by_tma or s.store == "tma",
        "mbarrier_expect": by_tma or split,
        "mbarrier_arrive": not s.multicast or s.residual_buffers > 0,
        "mbarrier_arrive_peer": s.multicast,
        "peer_address": s.cluster_size > 1,
        "cluster_rank": s.cluster_size > 1,
        "cluster_sync": s.multicast and not s.asks_early,
        "cluster_arrive": split or (s.multicast and s.asks_early),
        "store_peer": split,
        "dependent_launch": bool(s.dependent_launch),
        "evict_first": bool(s.evict_first),
        "named_sync": not s.multicast or s.staged or pingpong or s.workspace,
        "workspace": s.workspace and not s.dealt,
        "shares": s.workspace and s.dealt,
        "add_global": s.reduction == "atomic",
        "named_arrive": not s.multicast or pingpong,
        "tma_store": s.store == "tma",
        "tma_store_wait": s.store == "tma",
        "proxy_fence": s.store == "tma" or copies,
        "set_registers": s.consumer_regs > 0,
    }
    rank = map_rank(problem)
    return [
        *(text for name, text in ptx.primitives(rank).items() if needed.get(name, True)),
        *(ptx.tma_load_function(*flags, rank) for flags in sorted(load_flags(problem, s))),
        *([ptx.stmatrix_functions(s.swap_ab)] if s.staged and OUT_DTYPE_BYTES[problem.out_dtype] == 2 else []),
        *filter(None, [ptx.pack_function(problem.out_dtype)]),
        ptx.wgmma_function(s.tile_n, problem.dtype, rows.k_major, columns.k_major),
        _DESCRIPTOR,
        _RING,
        *copying.functions(problem, s),
    ]


_DESCRIPTOR = """\
// wgmma descriptor of an operand with 128-byte swizzle: eight rows (1024 bytes) from group to group, `slab` bytes
// from slab to slab (MN-major only). Adding (bytes >> 4) to it moves the start address.
__device__ __forceinline__ u64 descriptor(u32 address, u32 slab) {
  return (u64)((address & 0x3FFFF) >> 4) | (u64)(slab >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}"""

_RING = """\
// A place in a ring of stages, and the parity of the round it is in. It runs on from tile to tile.
template <int SIZE>
struct Ring {
  u32 stage, parity;
  __device__ __forceinline__ void next() {
    if (++stage == SIZE) { stage = 0; parity ^= 1; }
  }
  __device__ __forceinline__ void skip(u32 count) {
    const u32 end = stage + count;
    stage = end % SIZE;
    parity ^= end / SIZE & 1;
  }
};"""


def _empty_arrivals(s: Schedule, stage: str) -> str:
    """`empty_arrivals` as a CUDA expression: where one CTA loads for others it depends on the place in the cluster."""
    if s.multicast_kind == "slice":
        return f" {empty_arrivals(s)}"
    rotate = s.multicast_kind == "rotate"
    terms = ["1"]
    if s.cluster_n > 1:
        terms.append(f"(cluster_column == {f'{stage} % CLUSTER_N' if rotate else 0} ? CLUSTER_N - 1 : 0)")
    if s.cluster_m > 1:
        terms.append(f"(cluster_row == {f'{stage} % CLUSTER_M' if rotate else 0} ? CLUSTER_M - 1 : 0)")
    readers = stage_readers(s)
    count = " + ".join(terms)
    return "\n" + 20 * " " + (count if readers == 1 else f"{readers} * ({count})")


def _mbarriers(problem: Problem, s: Schedule) -> list[str]:
    """Lines of warp 0 that initialise all mbarriers."""
    exchange = []
    if s.split_cluster:
        exchange = [
            "mbarrier_init(smem + SMEM_EXCHANGED, 1);",
            f"mbarrier_expect(smem + SMEM_EXCHANGED, {epilogue.received_bytes(problem, s)});",
        ]
    arrivals = copying.full_arrivals(problem, s)
    full = f"mbarrier_init(full + 8 * i, {arrivals});"
    empty = f"mbarrier_init(empty + 8 * i,{_empty_arrivals(s, 'i')});"
    landed: list[str] = []
    if s.residual_buffers:
        landed = _for_each(
            "RESIDUALS * CONSUMERS",
            "mbarrier_init(smem + SMEM_LANDED + 8 * i, 1);",
            "mbarrier_init(smem + SMEM_LANDED + 8 * RESIDUALS * CONSUMERS + 8 * i, 4);",
        )
    if s.early_fill and not s.multicast:
        lines = [
            *_for_each("STAGES", full),
            "mbarrier_init_fence();",
            "// What takes longest begins first: all stages are asked for before the roles part.",
            *early_fill(problem, s),
            *_for_each("STAGES", empty),
        ]
        return ["if (elect_one()) {", *("  " + line for line in [*lines, *landed, *exchange]), "}"]
    if s.straight_start:
        lines = [*_for_each("STAGES", full, empty), *landed, *exchange]
        return ["if (threadIdx.x == 0) {", *("  " + line for line in lines), "}"]
    lines = [
        "if (threadIdx.x < STAGES) {",
        f"  mbarrier_init(full + 8 * threadIdx.x, {arrivals});",
        f"  mbarrier_init(empty + 8 * threadIdx.x,{_empty_arrivals(s, 'threadIdx.x')});",
        "}",
    ]
    if exchange:
        lines += ["if (threadIdx.x == 0) {", *("  " + line for line in exchange), "}"]
    if s.residual_buffers:
        lines += [
            "if (threadIdx.x < RESIDUALS * CONSUMERS) {",
            "  mbarrier_init(smem + SMEM_LANDED + 8 * threadIdx.x, 1);",
            "  mbarrier_init(smem + SMEM_LANDED + 8 * (RESIDUALS * CONSUMERS + threadIdx.x), 4);  // warps",
            "}",
        ]
    return lines


def _for_each(count: str, *lines: str) -> list[str]:
    """A loop over `i`, unrolled."""
    return ["#pragma unroll", f"for (int i = 0; i < {count}; ++i) {{", *("  " + line for line in lines), "}"]


def _kernel(problem: Problem, s: Schedule) -> str:
    tiles = dict(zip("ab", operand_tiles(problem, s), strict=True))
    by_threads = [name for name, tile in tiles.items() if copied(problem, tile.operand)]
    maps = [f"map_{name}" for name in tiles if name not in by_threads]
    for matrix in staged_matrices(problem, s):
        maps += [f"map_{matrix}{width}" for width in store_widths(problem, s)]
    arguments = [f"const __grid_constant__ TensorMap {name}" for name in maps]
    arguments += ["int m, int n, int k, int k_zigzag", *walk.parameters(problem)]
    if problem.batched:
        arguments.append("int batch, int a_step, int b_step")
    if s.clip_boxes:
        arguments.append("int stage_bytes")
    arguments += [f"const unsigned short* {name}, " + _pitches(problem, name) for name in by_threads]
    identity = [
        "  constexpr int cluster_row = 0, cluster_column = 0;",
        *([] if s.held_blocks else walk.places(s)),
    ]
    share = ["  const int k_blocks = (k + TILE_K - 1) / TILE_K;"]
    ready: list[str] = []
    leave = ""
    if s.multicast:
        identity = [
            "  const u32 rank = cluster_rank();",
            "  const int cluster_row = rank % CLUSTER_M, cluster_column = rank / CLUSTER_M;",
            *walk.places(s, "(CLUSTER_M * CLUSTER_N)"),
        ]
        ready = ["  cluster_sync();"]
        if s.asks_early:
            ready = [
                "  cluster_arrive();",
                "  if (warp == 0 && elect_one()) {",
                "    // What this CTA loads for itself need not wait for its peers.",
                *("    " + line for line in early_fill(problem, s)),
                "  }",
                "  cluster_wait();",
            ]
    if s.split_cluster:
        identity = [
            "  constexpr int cluster_row = 0, cluster_column = 0;",
            "  const u32 rank = cluster_rank();",
            *walk.places(s, "SPLIT_K"),
        ]
        share = [
            "  const int all_blocks = (k + TILE_K - 1) / TILE_K;",
            *walk.cluster_share(s),
        ]
        ready = ["  cluster_arrive();  // waited for before the first word to a peer"]
        leave = "  cluster_wait();"
    if s.workspace:
        arguments.append("u32* workspace")
        share = ["  const int all_blocks = (k + TILE_K - 1) / TILE_K;"]
    arguments += [f"const float* {word}" for word in problem.fused.scales]
    if problem.fused.bias:
        arguments.append(f"const {ptx.C_TYPES[problem.bias_dtype]}* __restrict__ bias")
    element = ptx.C_TYPES[problem.out_dtype]
    if problem.fused.residual and not s.residual_buffers:
        arguments.append(f"const {element}* __restrict__ c, " + _pitches(problem, "c"))
    if s.store != "tma":
        arguments.append(f"{element}* __restrict__ d, " + _pitches(problem, "d"))
    arguments += [f"float {name}" for name in ("alpha", "beta") if getattr(problem.fused, name)]
    prefetch = ["  if (threadIdx.x == 32) {", *(f"    tensor_map_prefetch({name});" for name in maps), "  }"]
    if not maps:
        prefetch = []
    early = []
    if s.asks_early:
        early = [*loads(problem, s), "  int filled = 0;  // stages of the first tile that are asked for", ""]
    produce = copying.copying_producer if s.load == "copy" else producer
    lines = "\n".join
    return f"""\
extern "C" __global__ void __launch_bounds__(THREADS, 1)
{ENTRY}({("," + chr(10) + " " * (len(ENTRY) + 1)).join(arguments)}) {{
  extern __shared__ __align__(1024) unsigned char shared[];
  const u32 smem = shared_address(shared);
  const u32 full = smem + SMEM_FULL, empty = smem + SMEM_EMPTY;
  // Broadcast from lane 0, so that the compiler knows the warp to agree and keeps what follows in uniform registers.
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int warpgroup = warp / 4;
{lines(identity)}
  const Walk walk{{{walk.initial(problem)}}};
{lines(walk.stretch(problem, s))}
{lines(share)}

{lines([*prefetch, *early])}
  if (warp == 0) {{
{lines("    " + line for line in _mbarriers(problem, s))}
    mbarrier_init_fence();
    __syncwarp();
  }}
{lines([*ready, ""])}
{produce(problem, s, leave)}

{consumer(problem, s)}
}}"""


def _pitches(problem: Problem, name: str) -> str:
    """The parameters that say, in elements, how far apart rows and products of a matrix lie."""
    return f"long long {name}_pitch" + (f", long long {name}_batch" if problem.batched else "")
