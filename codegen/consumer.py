"""The consumer warpgroups: walk over tiles, main loop of wgmmas, epilogue."""

from __future__ import annotations

from ..space import DTYPE_BYTES, PINGPONG, PROMOTED, Problem, Schedule
from ..space.resources import WGMMA_K_BYTES, OperandTile, operand_tiles, turns_crowd_loop
from . import epilogue, fusion, scales
from .plan import FLAG_ALIGNMENT
from .producer import ready_barrier
from .walk import FIRST_ROW, consumer_loop, first_column


def consumer(problem: Problem, s: Schedule) -> str:
    """The rest of the kernel, after the producer has returned."""
    rows, columns = operand_tiles(problem, s)
    pingpong = s.arrangement == PINGPONG
    lines = ["  // Consumers."]
    if s.consumer_regs:
        lines.append(f"  grow_registers<{s.consumer_regs}>();")
    if not s.multicast:
        lines.append(f"  named_sync({ready_barrier(s)});")
    lines += [
        "  const int consumer = warpgroup - 1;",
        "  const int thread = threadIdx.x % 128;",
        f"  const int tile_row = {'0' if pingpong or s.consumers == 1 else 'consumer * 64 * M64'};"
        "  // of this warpgroup, in the CTA tile",
        f"  const u64 a_descriptor = {_descriptor('A', rows, 'tile_row')};",
        f"  const u64 b_descriptor = {_descriptor('B', columns, '')};",
    ]
    if s.multicast:
        *places, hand_back, arrive, end = _HAND_BACK[s.multicast_kind]
        hidden = _HIDDEN_TURN if turns_crowd_loop(s) else []
        lines += [*places, *hidden, hand_back, arrive, end]
    else:
        lines += [
            "  auto hand_back = [&](u32 stage) {",
            "    if (thread == 0) mbarrier_arrive(empty + 8 * stage);",
            "  };",
        ]
    if s.staged:
        lines.append("  const u32 chunks = smem + SMEM_EPILOGUE + consumer * BUFFERS * CHUNK;")
    if s.store == "copy":
        lines.append("  const unsigned char* const written = shared + SMEM_EPILOGUE + consumer * BUFFERS * CHUNK;")
    if s.workspace:
        lines += [
            "  // Counters of arrivals, one for each warpgroup of each tile, then the slots of partial tiles.",
            "  const long long cta_tiles = (long long)tiles * CLUSTER_M * CLUSTER_N;",
            f"  constexpr int ALIGNMENT = {FLAG_ALIGNMENT};  // of the slots",
            "  const long long flags = (cta_tiles * CONSUMERS * 4 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;",
            "  float4* const slots = (float4*)((char*)workspace + flags);",
        ]
        if not s.dealt:
            lines.append("  const u32 vote = smem + SMEM_VOTES + 4 * consumer;")
    if s.split_cluster:
        lines.append("  const u32 received = smem + SMEM_EXCHANGE + consumer * EXCHANGE_SLOTS * SLOT;")
    if s.dependent_launch and (early := [*problem.fused.scales, *(["bias"] if problem.fused.bias else [])]):
        what = "the bias is" if early == ["bias"] else "they are"
        lines.append(f"  wait_for_dependencies();  // {what} read before the operands arrive")
    lines += ["  " + line for line in scales.places(problem, s)]
    if problem.fused.bias:
        lines.append("  float* const tile_bias = (float*)(shared + SMEM_BIAS) + consumer * BIAS;")
    if s.residual_buffers:
        lines += [*("  " + line for line in fusion.places()), "  Ring<RESIDUALS> residual{0, 0};"]
    if pingpong:
        lines += [
            "",
            "  // Ping-pong: main loops take turns, so that one warpgroup's epilogue runs under the other's wgmmas.",
            "  const u32 my_turn = 4 + consumer, other_turn = 4 + (consumer ^ 1);",
            "  if (consumer == 1) named_arrive(other_turn, 256);",
            "  Ring<STAGES> ring{0, 0};",
            "  if (consumer == 1) ring.skip(k_blocks);",
            "",
            *("  " + line for line in consumer_loop(s)),
        ]
    else:
        lines += ["  Ring<STAGES> ring{0, 0};", "", *("  " + line for line in consumer_loop(s, warps=True))]
    lines += [
        "    const Position at = tile_position(tile, walk);",
        f"    int row = {FIRST_ROW} + tile_row;",
        f"    int column = {first_column(problem)};",
        "    // Hides where they come from: the compiler would work them out again before every store.",
        '    asm volatile("" : "+r"(row), "+r"(column));',
        *("    " + line for line in fusion.before_main_loop(problem, s)),
        f"    float accumulators[M64][TILE_N / 2]{' = {}' * (problem.accumulate == PROMOTED)};",
    ]
    if pingpong:
        lines.append("    named_sync(my_turn, 256);")
    promoted = problem.accumulate == PROMOTED
    lines += _promoted_loop(s) if promoted else _main_loop(problem, s, rows, columns)
    if pingpong:
        lines.append("    named_arrive(other_turn, 256);")
    if not promoted:
        lines.append("    wgmma_wait<0>();")
    if s.mma_in_flight:
        lines.append("    hand_back(last_stage);")
    if pingpong:
        lines.append("    ring.skip(k_blocks);")
    lines += [
        "",
        *("    " + line for line in epilogue.call(problem, s)),
        "  }",
    ]
    if s.store == "tma":
        lines.append("  if (thread == 0) tma_store_wait<0>();")
    return "\n".join(lines)


_HAND_BACK_TO_PEERS = [
    "  // Thread i hands stages back to peer i: first the CTAs of its cluster column, then the others of its row.",
    "  constexpr int PEERS = CLUSTER_M + CLUSTER_N - 1;",
    "  const int other = thread - CLUSTER_M;",
    "  const u32 peer = thread < CLUSTER_M",
    "      ? thread + cluster_column * CLUSTER_M",
    "      : cluster_row + (other + (other >= cluster_column)) * CLUSTER_M;",
    "  const u32 peer_empty = peer_address(empty, thread < PEERS ? peer : rank);",
    "  auto hand_back = [&](u32 stage) {",
    "    if (thread < PEERS) mbarrier_arrive_peer(peer_empty + 8 * stage);",
    "  };",
]

_HAND_BACK_TO_LEADERS = [
    "  // Thread 0 hands stages back to this CTA, threads 1 and 2 to the first of its cluster row and column, who load",
    "  // what it shares with them.",
    "  const u32 peer = thread == 1 ? cluster_row : thread == 2 ? cluster_column * CLUSTER_M : rank;",
    "  const bool tells = thread == 0 || (thread == 1 && cluster_column > 0) || (thread == 2 && cluster_row > 0);",
    "  const u32 peer_empty = peer_address(empty, peer);",
    "  auto hand_back = [&](u32 stage) {",
    "    if (tells) mbarrier_arrive_peer(peer_empty + 8 * stage);",
    "  };",
]

_HAND_BACK_IN_TURN = [
    "  // Thread i hands stages back to peer i: first the CTAs of its cluster column, then the others of its row.",
    "  // This CTA gets all of them, a peer those that it is its turn to load.",
    "  constexpr int PEERS = CLUSTER_M + CLUSTER_N - 1;",
    "  const int other = thread - CLUSTER_M + (thread - CLUSTER_M >= cluster_column);",
    "  const u32 peer = thread < CLUSTER_M ? thread + cluster_column * CLUSTER_M : cluster_row + other * CLUSTER_M;",
    "  const u32 peer_empty = peer_address(empty, thread < PEERS ? peer : rank);",
    "  u32 turns = thread < CLUSTER_M ? CLUSTER_M - 1 : CLUSTER_N - 1;  // as a mask",
    "  u32 turn = thread < CLUSTER_M ? thread : thread < PEERS ? other : ~0u;",
    "  if (thread == cluster_row) turns = turn = 0;",
    "  auto hand_back = [&](u32 stage) {",
    "    if ((stage & turns) == turn) mbarrier_arrive_peer(peer_empty + 8 * stage);",
    "  };",
]

_HIDDEN_TURN = [
    "  // Hides where they come from: the compiler would work them out again in every k-block.",
    '  asm volatile("" : "+r"(turns), "+r"(turn));',
]

_HAND_BACK = {"slice": _HAND_BACK_TO_PEERS, "leader": _HAND_BACK_TO_LEADERS, "rotate": _HAND_BACK_IN_TURN}


def _operands(s: Schedule) -> list[str]:
    """Lines that wait for a k-block and say where its operands are."""
    return [
        "      mbarrier_wait(full + 8 * ring.stage, ring.parity);",
        "      const u64 a = a_descriptor + ring.stage * (A_STAGE >> 4);",
        f"      const u64 b = b_descriptor + {'block' if s.held_blocks else 'ring.stage'} * (B_STAGE >> 4);",
    ]


def _main_loop(problem: Problem, s: Schedule, rows: OperandTile, columns: OperandTile) -> list[str]:
    """Per k-block: wait for the stage, one fence, all wgmmas, one commit, one wait, hand a stage back."""
    lines = []
    if s.mma_in_flight:
        lines.append("    u32 last_stage = 0;")
    lines += [
        "    #pragma unroll 1",
        "    for (int block = 0; block < k_blocks; ++block) {",
        *_operands(s),
        "      wgmma_fence();",
        "      #pragma unroll",
        f"      for (int step = 0; step < TILE_K / {WGMMA_K_BYTES // DTYPE_BYTES[problem.dtype]}; ++step) {{",
        "        #pragma unroll",
        "        for (int i = 0; i < M64; ++i)",
        f"          wgmma(accumulators[i],"
        f" a + (({_step('A', rows)} + i * {'64 * 128' if rows.k_major else 'A_SLAB'}) >> 4),",
        f"                b + (({_step('B', columns)}) >> 4), block | step);",
        "      }",
        "      wgmma_commit();",
        f"      wgmma_wait<{s.mma_in_flight}>();",
    ]
    if s.mma_in_flight:
        lines += [
            "      if (block > 0) hand_back(last_stage);  // the k-block before this one has been read",
            "      last_stage = ring.stage;",
        ]
    else:
        lines.append("      hand_back(ring.stage);")
    lines += ["      ring.next();", "    }"]
    return lines


def _promoted_loop(s: Schedule) -> list[str]:
    """The main loop with sums of one slab (128 of K) in the tensor cores, added up outside of them."""
    return [
        "    #pragma unroll 1",
        "    for (int block = 0; block < k_blocks; ++block) {",
        *_operands(s),
        "      // Tensor cores keep some 14 bits of a sum of 8-bit products: a slab's sums are added up in fp32 here.",
        "      #pragma unroll",
        "      for (int slab = 0; slab < A_SLABS; ++slab) {",
        "        float sums[M64][TILE_N / 2];",
        "        wgmma_fence();",
        "        #pragma unroll",
        "        for (int step = 0; step < 4; ++step) {",
        "          #pragma unroll",
        "          for (int i = 0; i < M64; ++i)",
        "            wgmma(sums[i], a + ((slab * A_SLAB + step * 32 + i * 64 * 128) >> 4),",
        "                  b + ((slab * B_SLAB + step * 32) >> 4), step);",
        "        }",
        "        wgmma_commit();",
        "        wgmma_wait<0>();",
        "        if (slab == A_SLABS - 1) hand_back(ring.stage);",
        "        #pragma unroll",
        "        for (int i = 0; i < M64; ++i) {",
        "          #pragma unroll",
        "          for (int j = 0; j < TILE_N / 2; ++j) accumulators[i][j] += sums[i][j];",
        "        }",
        "      }",
        "      ring.next();",
        "    }",
    ]


def _descriptor(upper: str, tile: OperandTile, first_row: str) -> str:
    """The descriptor of an operand from `first_row` on, in stage 0; K-major operands ignore the slab distance."""
    start = f"smem + SMEM_{upper}"
    if first_row:
        start += f" + {first_row} * 128" if tile.k_major else f" + {first_row} / 64 * {upper}_SLAB"
    return f"descriptor({start}, {'16' if tile.k_major else upper + '_SLAB'})"


def _step(upper: str, tile: OperandTile) -> str:
    """Bytes from the first k of a stage to 16 * step: 32 bytes along the row of a slab, or 16 rows."""
    return f"step / 4 * {upper}_SLAB + step % 4 * 32" if tile.k_major else "step * 16 * 128"
