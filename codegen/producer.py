"""The producer warpgroup: one thread that keeps the ring of stages full."""

from __future__ import annotations

from ..space import Schedule
from .ptx import load_name


def operand_loads(s: Schedule) -> dict[str, tuple[bool, bool]]:
    """For the row operand `a` and the column operand `b` of the kernel: (multicast, with a cache hint)."""
    once = {"a": "b", "b": "a", "": ""}[s.evict_first] if s.swap_ab else s.evict_first
    return {"a": (s.cluster_n > 1, once == "a"), "b": (s.cluster_m > 1, once == "b")}


def producer(s: Schedule, leave: str) -> str:
    """The branch of the producer warpgroup, up to and with its return."""
    loads = operand_loads(s)
    lines = ["  if (warpgroup == 0) {"]
    if s.producer_regs:
        lines.append(f"    shrink_registers<{s.producer_regs}>();")
    lines += [
        "    if (warp == 0 && elect_one()) {",
        "      tensor_map_prefetch(map_a);",
        "      tensor_map_prefetch(map_b);",
    ]
    # Each CTA loads 1/sharers of a shared tile and multicasts it to all that share it.
    if s.cluster_n > 1:
        lines += [
            "      // The CTAs of a cluster row share A: each loads a slice for all of them.",
            "      constexpr int A_SLICE = TILE_M / CLUSTER_N;",
            f"      const u32 a_peers = {_row_mask(s)}u << cluster_row;",
        ]
    if s.cluster_m > 1:
        lines += [
            "      // The CTAs of a cluster column share B.",
            "      constexpr int B_SLICE = TILE_N / CLUSTER_M;",
            f"      const u32 b_peers = {2**s.cluster_m - 1}u << (cluster_column * CLUSTER_M);",
        ]
    if s.evict_first:
        lines.append("      const u64 once = evict_first();")
    a_slice = " + cluster_column * A_SLICE" if s.cluster_n > 1 else ""
    b_slice = " + cluster_row * B_SLICE" if s.cluster_m > 1 else ""
    lines += [
        "      Ring ring{0, 0};",
        "      bool backwards = false;",
        "      for (int tile = first_tile; tile < tiles; tile += tile_step) {",
        "        const Position at = tile_position(tile, walk);",
        f"        const int a_row = (at.m * CLUSTER_M + cluster_row) * TILE_M{a_slice};",
        f"        const int b_row = (at.n * CLUSTER_N + cluster_column) * TILE_N{b_slice};",
        "        #pragma unroll 1",
        "        for (int block = 0; block < k_blocks; ++block) {",
        "          const int column = (first_block + (backwards ? k_blocks - 1 - block : block)) * TILE_K;",
        "          const u32 arrived = full + 8 * ring.stage;",
        "          mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);",
        "          mbarrier_expect(arrived, A_STAGE + B_STAGE);",
        "          #pragma unroll",
        "          for (int slab = 0; slab < SLABS; ++slab) {",
        "            const u32 a_slab = smem + SMEM_A + ring.stage * A_STAGE + slab * A_SLAB"
        + (" + cluster_column * A_SLICE * 128;" if s.cluster_n > 1 else ";"),
        "            const u32 b_slab = smem + SMEM_B + ring.stage * B_STAGE + slab * B_SLAB"
        + (" + cluster_row * B_SLICE * 128;" if s.cluster_m > 1 else ";"),
        *(f"            {_load(operand, *flags)}" for operand, flags in loads.items()),
        "          }",
        "          ring.next();",
        "        }",
        "        backwards = k_zigzag && !backwards;",
        "      }",
        "    }",
    ]
    if leave:
        lines.append("  " + leave)
    lines += ["    return;", "  }"]
    return "\n".join(lines)


def _load(operand: str, multicast: bool, hinted: bool) -> str:
    arguments = [f"{operand}_slab", f"map_{operand}", "column + slab * 64", f"{operand}_row", "arrived"]
    if multicast:
        arguments.append(f"{operand}_peers")
    if hinted:
        arguments.append("once")
    return f"{load_name(multicast, hinted)}({', '.join(arguments)});"


def _row_mask(s: Schedule) -> int:
    """Bits of the CTAs in cluster row 0: rank = row + column * CLUSTER_M."""
    return sum(1 << (column * s.cluster_m) for column in range(s.cluster_n))
