"""The producer warpgroup: one thread that keeps the ring of stages full."""

from __future__ import annotations

from ..space import Schedule


def producer(s: Schedule, leave: str) -> str:
    """The branch of the producer warpgroup, up to and with its return."""
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
        "          const int column = (backwards ? k_blocks - 1 - block : block) * TILE_K;",
        "          const u32 arrived = full + 8 * ring.stage;",
        "          mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);",
        "          mbarrier_expect(arrived, A_STAGE + B_STAGE);",
        "          #pragma unroll",
        "          for (int slab = 0; slab < SLABS; ++slab) {",
        "            const u32 a_slab = smem + SMEM_A + ring.stage * A_STAGE + slab * A_SLAB"
        + (" + cluster_column * A_SLICE * 128;" if s.cluster_n > 1 else ";"),
        "            const u32 b_slab = smem + SMEM_B + ring.stage * B_STAGE + slab * B_SLAB"
        + (" + cluster_row * B_SLICE * 128;" if s.cluster_m > 1 else ";"),
        "            " + _load("a", s.cluster_n > 1),
        "            " + _load("b", s.cluster_m > 1),
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


def _load(operand: str, multicast: bool) -> str:
    arguments = f"{operand}_slab, map_{operand}, column + slab * 64, {operand}_row, arrived"
    if multicast:
        return f"tma_load_multicast({arguments}, {operand}_peers);"
    return f"tma_load({arguments});"


def _row_mask(s: Schedule) -> int:
    """Bits of the CTAs in cluster row 0: rank = row + column * CLUSTER_M."""
    return sum(1 << (column * s.cluster_m) for column in range(s.cluster_n))
