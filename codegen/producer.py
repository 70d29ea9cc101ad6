"""The producer warpgroup: one thread that keeps the ring of stages full."""

from __future__ import annotations

from ..space import DTYPE_BYTES, Problem, Schedule
from ..space.resources import SWIZZLE_BYTES, OperandTile, copied, operand_tiles
from . import fusion
from .ptx import load_name
from .walk import FIRST_ROW, first_column, loop


def ready_barrier(s: Schedule) -> str:
    """The barrier at which others wait for the warp that initialises the mbarriers, and how many threads it is for:
    that warp, the consumers, the loaders of a residual, and the other warps of a producer that copies."""
    others = 32 * s.consumers if s.residual_buffers else 96 if s.load == "copy" else 0
    return f"0, {32 + 128 * s.consumers + others}"


def hinted(s: Schedule, tile: OperandTile) -> bool:
    """Whether the loads of an operand carry a cache hint."""
    return s.evict_first == tile.operand


def load_flags(problem: Problem, s: Schedule) -> set[tuple[bool, bool]]:
    """The (multicast, hinted) kinds of load that the kernel uses."""
    tiles = [tile for tile in operand_tiles(problem, s) if not copied(problem, tile.operand)]
    flags = {(tile.sharers > 1, hinted(s, tile)) for tile in tiles}
    if s.alone_stages:
        flags |= {(False, hinted) for _, hinted in flags}
    return flags | {(False, False)} if s.residual_buffers else flags


def producer(problem: Problem, s: Schedule, leave: str) -> str:
    """The branch of the producer warpgroup, up to and with its return."""
    lines = ["  if (warpgroup == 0) {"]
    if s.producer_regs:
        lines.append(f"    shrink_registers<{s.producer_regs}>();")
    if not s.multicast:
        lines.append(f"    if (warp == 0) named_arrive({ready_barrier(s)});  // mbarriers are ready")
        if s.residual_buffers:
            lines.append(f"    if (warp > 0 && warp <= CONSUMERS) named_sync({ready_barrier(s)});")
    lines += ["    if (warp == 0 && elect_one()) {"]
    if s.dependent_launch:
        lines.append("      launch_dependents();")
    if not s.asks_early:
        lines += ["    " + line for line in loads(problem, s)]
    lines.append("      Ring<STAGES> ring{0, 0};")
    corner = {name: corner_of(problem, name) for name in "ab"}
    arriving = _arriving(s)
    if s.clip_boxes and not s.early_fill:
        lines += ["      " + line for line in _CLIPPED]
    first = first_block(s)
    if s.dependent_launch == "weights":
        early = "a" if s.swap_ab else "b"
        lines += [
            "",
            "      // The weights do not depend on the kernel before:"
            " fill the first stages with them while it still runs.",
            "      int early = 0;",
            *("      " + line for line in loop(s)),
            "        const Position at = tile_position(tile, walk);",
            "        for (; early < STAGES && early < k_blocks; ++early) {",
            f"          mbarrier_expect(full + 8 * early, {arriving});",
            f"          load_{early}(early, ({first}early) * TILE_K, {corner[early]});",
            "        }",
            "        break;",
            "      }",
            "      wait_for_dependencies();",
            "",
        ]
        counter, ahead = "early", [early]
    else:
        if s.dependent_launch:
            lines.append("      wait_for_dependencies();")
        counter, ahead = "filled", _early(problem, s) if s.asks_early else []
    expected = f"fresh ? {arriving} : A_STAGE" if s.held_blocks else arriving
    begin = [
        "          mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);",
        f"          mbarrier_expect(full + 8 * ring.stage, {expected});",
    ]
    load = {name: f"          load_{name}(ring.stage, column, {corner[name]});" for name in "ab"}
    if s.held_blocks:
        load["b"] = f"          if (fresh) load_b(ring.stage, block, column, {corner['b']});"
    fill = [*begin, *load.values()]
    if ahead:
        fill = [
            f"          if ({counter} > 0) {{",
            f"            --{counter};",
            "          } else {",
            *("  " + line for line in (*begin, *(load[name] for name in ahead))),
            "          }",
            *(load[name] for name in load if name not in ahead),
        ]
    lines += [
        *(["      int held = -1;  // the column of tiles whose B is in shared memory"] if s.held_blocks else []),
        "      bool backwards = false;",
        *("      " + line for line in loop(s)),
        "        const Position at = tile_position(tile, walk);",
        *(["        " + line for line in _fresh(problem)] if s.held_blocks else []),
        "        #pragma unroll 1",
        "        for (int block = 0; block < k_blocks; ++block) {",
        f"          const int column = ({first}(backwards ? k_blocks - 1 - block : block)) * TILE_K;",
        *fill,
        "          ring.next();",
        "        }",
        "        backwards = k_zigzag && !backwards;",
        "      }",
        *(_DRAIN if s.multicast else []),
        "    }",
    ]
    lines += ["    " + line for line in fusion.loader(problem, s)]
    if leave:
        lines.append("  " + leave)
    lines += ["    return;", "  }"]
    return "\n".join(lines)


def _fresh(problem: Problem) -> list[str]:
    """Lines that tell whether the column of B is another than that of the tile before."""
    column = "at.batch * tiles_n + at.n" if problem.batched else "at.n"
    return [f"const int tile_column = {column};", "const bool fresh = tile_column != held;", "held = tile_column;"]


def loads(problem: Problem, s: Schedule) -> list[str]:
    """Lambdas that fill a stage with an operand, and what they need."""
    lines = ["  const u64 once = evict_first();"] if s.evict_first else []
    for name, tile in zip("ab", operand_tiles(problem, s), strict=True):
        shared = tile.sharers > 1
        for alone in [False, True] if shared and s.alone_stages else [not shared]:
            lines += [line.removeprefix("    ") for line in load_operand(problem, s, name, tile, alone)]
    return lines


def early_fill(problem: Problem, s: Schedule) -> list[str]:
    """Lines of one thread that ask for the first round of stages, for what the CTA loads for itself, or for whole
    stages that no CTA shares yet; `filled` counts them."""
    first = first_block(s)
    block = f"({first}filled)" if first else "filled"
    own = _own(problem, s)
    return [
        *loop(s),
        "  const Position at = tile_position(tile, walk);",
        *(["  " + line for line in _CLIPPED] if s.clip_boxes else []),
        "  #pragma unroll 1",
        f"  for (; filled < {'ALONE' if s.alone_stages else 'STAGES'} && filled < k_blocks; ++filled) {{",
        f"    mbarrier_expect(full + 8 * filled, {_arriving(s)});",
        *(
            f"    load_{name}{'_alone' * (name not in own)}(filled, {'filled, ' * _held(s, name)}{block} * TILE_K,"
            f" {corner_of(problem, name)});"
            for name in _early(problem, s)
        ),
        "  }",
        "  break;",
        "}",
    ]


def _held(s: Schedule, name: str) -> bool:
    """Whether an operand of the kernel stays in shared memory from tile to tile."""
    return name == "b" and s.held_blocks > 0


def _early(problem: Problem, s: Schedule) -> list[str]:
    """The operands of the kernel that are asked for early."""
    return ["a", "b"] if s.alone_stages else _own(problem, s)


def _own(problem: Problem, s: Schedule) -> list[str]:
    """The operands of the kernel that no other CTA shares."""
    return [name for name, tile in zip("ab", operand_tiles(problem, s), strict=True) if tile.sharers == 1]


def _arriving(s: Schedule) -> str:
    """The bytes of a stage as a CUDA expression."""
    return "stage_bytes" if s.clip_boxes else "A_STAGE + B_STAGE"


_CLIPPED = [
    "// Rows of a tile outside the matrix are not loaded. What was left there, NaN or not, reaches only",
    "// rows or columns of the accumulators that are never stored.",
]


_DRAIN = [
    "      // Peers hand stages back here: the CTA stays until the last of them has come.",
    "      for (int left = STAGES; left > 0; --left, ring.next())",
    "        mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);",
]
"""An arrival from a peer is on its way for a while, and must not reach a CTA that is gone."""


def first_block(s: Schedule) -> str:
    """What stands before the number of a k-block of the CTA's share of K to make it one of the tile's."""
    first = "unit_work.first_block + " if s.workspace else "first_block + " if s.split_cluster else ""
    return first + "SPLIT_K * " * s.interleave_k


def corner_of(problem: Problem, name: str) -> str:
    """Where the CTA's tile begins in an operand of the kernel: its first row, and which product of a batch; operands
    that all products share have a step of 0."""
    row = {"a": FIRST_ROW, "b": first_column(problem)}[name]
    return f"{row}, at.batch * {name}_step" if problem.batched else row


def load_operand(problem: Problem, s: Schedule, name: str, tile: OperandTile, alone: bool) -> list[str]:
    """A lambda that fills one operand of a stage, `alone` for this CTA only; otherwise a shared tile is loaded in
    slices, whole in turn, or whole by the first that shares it."""
    upper = name.upper()
    number, mask = {
        "a": ("cluster_column", f"{_row_mask(s)}u << cluster_row"),
        "b": ("cluster_row", f"{2**s.cluster_m - 1}u << (cluster_column * CLUSTER_M)"),
    }[name]
    shared = tile.sharers > 1
    lines = []
    place = "block" if _held(s, name) else "stage"
    target = f"smem + SMEM_{upper} + {place} * {upper}_STAGE + slab * {upper}_SLAB"
    # The coordinates across and along a slab.
    across, along = ("column", "row") if tile.k_major else ("row", "column")
    if tile.halves > tile.slab_boxes:
        across += f" + slab % ({upper}_SLABS / 2) * 64 + slab / ({upper}_SLABS / 2) * (n / 2)"
    else:
        across += f" + slab * {SWIZZLE_BYTES // DTYPE_BYTES[problem.dtype]}"
    loops = [f"for (int slab = 0; slab < {upper}_SLABS; ++slab)"]
    if tile.slab_boxes > 1:
        loops.append("for (int half = 0; half < 2; ++half)  // gate and up")
        target += f"\n                + half * ({upper}_ROWS / 2) * 128"
        along += " + half * (n / 2)"
    first: list[str] = []
    if tile.slices > 1:
        parts = tile.slices * tile.slab_boxes
        if shared and alone:
            number = "slice"
            loops.append(f"for (int slice = 0; slice < {tile.slices}; ++slice)")
        else:
            lines.append(f"      constexpr int {upper}_SLICE = {upper}_ROWS / {parts};  // each peer loads one for all")
        target += f" + {number} * {upper}_SLICE * 128"
        along += f" + {number} * {upper}_SLICE"
    elif shared and not alone and s.multicast_kind == "rotate":
        sharers = {"a": "CLUSTER_N", "b": "CLUSTER_M"}[name]
        first = [f"        if (stage % {sharers} != {number}) return;  // those that share it take turns, each for all"]
    elif shared and not alone:
        first = [f"        if ({number} > 0) return;  // the first of those that share it loads it for all"]
    arguments = [f"map_{name}", across, along, *(["product"] if problem.batched else []), "full + 8 * stage"]
    if not alone:
        lines.append(f"      const u32 {name}_peers = {mask};")
        arguments.append(f"{name}_peers")
    if hinted(s, tile):
        arguments.append("once")
    nested: list[str] = []
    for depth, head in enumerate(loops):
        indent = "  " * (4 + depth)
        nested += [f"{indent}#pragma unroll", indent + head + " {" * (depth == 0 and len(loops) > 1)]
    indent = "  " * (4 + len(loops))
    return [
        *lines,
        f"      auto load_{name}{'_alone' * (shared and alone)} = [&](u32 stage,"
        f" {'int block, ' * _held(s, name)}int column, int row{', int product' * problem.batched}) {{",
        *first,
        *nested,
        f"{indent}{load_name(not alone, hinted(s, tile))}({target},",
        f"{indent}    {', '.join(arguments)});",
        *(["        }"] if len(loops) > 1 else []),
        "      };",
    ]


def _row_mask(s: Schedule) -> int:
    """Bits of the CTAs in cluster row 0: rank = row + column * CLUSTER_M."""
    return sum(1 << (column * s.cluster_m) for column in range(s.cluster_n))
