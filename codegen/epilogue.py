"""The epilogue: accumulators to D, through shared memory and TMA or directly, partial sums added up before."""

from __future__ import annotations

from collections.abc import Iterator

from ..space import Problem, Schedule
from ..space.resources import ACCUMULATOR_BYTES, boxes_of_a_piece, registers_for_parts, two_parts_spill
from . import copying, fusion, stores
from .pieces import Piece, pieces
from .plan import UP
from .walk import product


def received_bytes(problem: Problem, s: Schedule) -> str:
    """A CUDA expression of `rank`: the bytes of partial sums that the CTA receives from its peers."""
    columns = [0] * s.split_k
    for piece in pieces(problem, s):
        columns[piece.owner] += piece.width * len(piece.halves)
    counts = [64 * c * ACCUMULATOR_BYTES * s.consumers * (s.split_k - 1) for c in columns]
    expression = str(counts[-1])
    for rank in reversed(range(s.split_k - 1)):
        if counts[rank] != counts[-1]:
            expression = f"rank == {rank} ? {counts[rank]} : {expression}"
    return expression


def functions(problem: Problem, s: Schedule) -> list[str]:
    """Device functions the epilogue calls."""
    parts = []
    if s.split_cluster:
        parts.append(_EXCHANGE)
    if s.workspace:
        parts += {
            "slots": [_LAST_TO_ARRIVE, _add_slots(two_parts_spill(problem, s))],
            "atomic": [_LAST_TO_ARRIVE, _ADD_ATOMIC],
            "shares": [_SHARES],
        }[s.reduction]
    return [*parts, *stores.functions(problem, s), *fusion.functions(problem, s)]


def call(problem: Problem, s: Schedule) -> list[str]:
    """Lines of the consumer that write its rows of the tile at (row, column)."""
    if not s.workspace:
        return _write(problem, s)
    if s.dealt:
        return _shares(problem, s)
    return [
        "const int cta = cluster_column * CLUSTER_M + cluster_row;",
        "u32* const counter = workspace + ((long long)tile * CLUSTER_M * CLUSTER_N + cta) * CONSUMERS + consumer;",
        "const bool complete = unit_work.parts == 1 ||",
        "    add_parts(accumulators, unit_work, slots, cta, counter, vote, consumer, thread);",
        "if (complete) {",
        *("  " + line for line in _write(problem, s)),
        "}",
    ]


def _shares(problem: Problem, s: Schedule) -> list[str]:
    """Lines that keep what others add up of this part in its slot; then, when all parts are there, add the others' to
    the pieces dealt to it, and store them."""
    dealt = list(pieces(problem, s))
    lines = [
        "const int share_tile = tile * CLUSTER_M * CLUSTER_N + cluster_column * CLUSTER_M + cluster_row;",
        "u32* const counter = workspace + share_tile * CONSUMERS + consumer;",
        "float4* const parts = part_address(slots, share_tile * SPLIT_K, consumer, thread);",
        "// The warpgroups' pieces are dealt to different CTAs as long as there are enough.",
        "const int share = (unit_work.part + consumer * (SPLIT_K - PIECES % SPLIT_K)) % SPLIT_K;",
    ]
    for piece in dealt:
        lines += [
            f"if (share != {piece.owner}) keep_piece<{column}, {piece.width}>(accumulators[{piece.block}],"
            f" parts{_block(piece)} + unit_work.part * PART_STEP);"
            for column in piece.halves
        ]
    lines += [
        "count_part(counter, consumer, thread);",
        "if (share < OWNERS) {",
        *("  " + line for line in fusion.after_main_loop(problem, s)),
        "  wait_for_parts(counter, consumer, thread);",
    ]
    for owner in range(min(len(dealt), s.split_k)):
        lines.append(f"  if (share == {owner}) {{")
        for group in _loaded_together([piece for piece in dealt if piece.owner == owner], s):
            lines += ["    " + line for line in _add_shares(problem, s, group)]
        lines.append("  }")
    return [*lines, "  leave_parts(counter, consumer, thread);", "}"]


def _block(piece: Piece) -> str:
    """What leads from a part's first block to that of a piece."""
    return f" + {piece.block} * (TILE_N / 8) * 128" if piece.block else ""


def _loaded_together(dealt: list[Piece], s: Schedule) -> Iterator[list[Piece]]:
    """The pieces of one owner in groups whose parts registers hold."""
    free = min(registers_for_parts(s), s.accumulators * (s.split_k - 1) // s.split_k)
    group: list[Piece] = []
    for piece in dealt:
        if group and _registers_of_parts([*group, piece], s) > free:
            yield group
            group = []
        group.append(piece)
    yield group


def _registers_of_parts(group: list[Piece], s: Schedule) -> int:
    return sum(piece.width // 2 * len(piece.halves) for piece in group) * (s.split_k - 1)


def _add_shares(problem: Problem, s: Schedule, group: list[Piece]) -> list[str]:
    """Lines that add and store a group of pieces, all of whose parts are asked for before the first is added: or, where
    registers do not hold those of one piece, some at a time."""
    loads, sums = [], []
    whole = _registers_of_parts(group, s) <= registers_for_parts(s)
    for piece in group:
        add = []
        for column in piece.halves:
            where, place = f"<{column}, {piece.width}>", f"parts{_block(piece)}, unit_work.part"
            if whole:
                name = f"parts_{piece.block}_{column}"
                loads += [
                    f"float4 {name}[SPLIT_K - 1][{piece.width // 8}];",
                    f"load_parts{where}({name}, {place}, 1);",
                ]
                add.append(f"add_loaded{where}(accumulators[{piece.block}], {name});")
            else:
                add.append(f"add_parts{where}(accumulators[{piece.block}], {place});")
        sums += [*add, *_store(problem, s, piece)]
    return [*loads, *sums]


def _write(problem: Problem, s: Schedule) -> list[str]:
    """Lines that finish and write whole sums, or with a split cluster first make them whole."""
    if s.store == "direct":
        return [f"store_direct(accumulators, {product('d', problem)}, d_pitch, row, column, m, n);"]
    lines = fusion.after_main_loop(problem, s)
    if s.split_cluster:
        lines += [
            "",
            "// Every CTA sends its part of a piece to the piece's owner.",
            "cluster_wait();",
            *(["cluster_arrive();", "cluster_wait();  // nobody reads stages any more"] if s.exchange_in_ring else []),
        ]
        for piece in pieces(problem, s):
            lines += [
                f"if (rank != {piece.owner}) send_piece<{column}, {piece.width}>(accumulators[{piece.block}],"
                f" received, {turn}, rank, {piece.owner}, smem + SMEM_EXCHANGED, thread);"
                for turn, column in _parts(piece)
            ]
        lines += ["mbarrier_wait(smem + SMEM_EXCHANGED, 0);", ""]
    for piece in pieces(problem, s):
        if s.split_cluster:
            add = [
                f"add_pieces<{column}, {piece.width}>(accumulators[{piece.block}],"
                f" received + {turn} * (SPLIT_K - 1) * SLOT, thread);"
                for turn, column in _parts(piece)
            ]
            inner = [*add, *_store(problem, s, piece)]
            lines += [f"if (rank == {piece.owner}) {{", *("  " + line for line in inner), "}"]
        else:
            lines += _store(problem, s, piece)
    return lines


def _parts(piece: Piece) -> list[tuple[int, int]]:
    """(turn, column) of each half of a piece: the number under which its owner receives it, where it lies."""
    return [(piece.turn * len(piece.halves) + i, column) for i, column in enumerate(piece.halves)]


def _store(problem: Problem, s: Schedule, piece: Piece) -> list[str]:
    """Lines that finish and store one piece: what comes before the activation, if it is kept, and D. All outputs go
    through the same chunks in turn."""
    before, after = fusion.before_activation(problem, s, piece), fusion.finish(problem, s, piece)
    outputs = [("d", piece.column, [*before, *after])]
    if problem.fused.aux:
        kept = [("aux" + UP * i, column, [] if i else before) for i, column in enumerate(piece.halves)]
        outputs = [*kept, ("d", piece.column, after)]
    lines = []
    for turn, (matrix, column, values) in enumerate(outputs, piece.turn * len(outputs)):
        number = turn % s.epilogue_buffers
        place = "" if number == 0 else f" + {number} * CHUNK"
        stage = stores.stage_function(problem, matrix)
        if s.store == "tma":
            store = stores.store_piece(problem, s, piece, matrix, f"chunks{place}")
        else:
            store = [copying.store(problem, s, piece, f"written{place}")]
        lines += [
            *_wait_for_chunk(problem, s, turn, values),
            f"{stage}<{column}, {piece.width}>(accumulators[{piece.block}], chunks{place}, thread);",
            *(fusion.release(s) if matrix == "d" else []),
            "named_sync(1 + consumer, 128);",
            *store,
        ]
    return lines


def _wait_for_chunk(problem: Problem, s: Schedule, turn: int, values: list[str]) -> list[str]:
    """Lines that work out `values`, and wait until the store that last read the chunk has done so: just before the
    chunk is written again. The first wait is for the tile before, whose stores had a whole main loop to finish; it
    comes first, for all threads must also have laid the bias out before it is read."""
    all_threads = "named_sync(1 + consumer, 128);"
    pending = "0"
    if turn > 0:
        pending = "BUFFERS - 1" if (boxes := boxes_of_a_piece(problem, s)) == 1 else f"{boxes} * (BUFFERS - 1)"
    wait = [f"if (thread == 0) tma_store_wait<{pending}>();", all_threads]
    if s.store == "copy":
        # With two chunks the barrier of the piece before tells that all threads have stored the one before that.
        wait = [all_threads] if turn == 0 or s.epilogue_buffers == 1 else []
    if turn == 0:
        return [*wait, *values]
    return [*values, *wait] if turn >= s.epilogue_buffers else values


_EXCHANGE = """\
// Sends columns COLUMN .. COLUMN + WIDTH of a 64-row block to CTA `owner`. The owner keeps the parts of its piece
// number `turn` in SPLIT_K - 1 slots, in the order of the ranks after its own.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void send_piece(const float (&d)[COUNT], u32 received, int turn, u32 rank, u32 owner,
                                           u32 barrier, int thread) {
  const u32 order = (rank + SPLIT_K - owner - 1) % SPLIT_K;
  const u32 slot = peer_address(received + (turn * (SPLIT_K - 1) + order) * SLOT + thread * 16, owner);
  const u32 landed = peer_address(barrier, owner);
  #pragma unroll
  for (int unit = 0; unit < WIDTH / 8; ++unit) {
    const int j = (COLUMN / 8 + unit) * 4;
    store_peer(slot + unit * 128 * 16, float4{d[j], d[j + 1], d[j + 2], d[j + 3]}, landed);
  }
}

// Adds the parts of a piece, always in the same order.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void add_pieces(float (&d)[COUNT], u32 slots, int thread) {
  #pragma unroll
  for (int part = 0; part < SPLIT_K - 1; ++part) {
    #pragma unroll
    for (int unit = 0; unit < WIDTH / 8; ++unit) {
      const int j = (COLUMN / 8 + unit) * 4;
      const float4 v = load_shared(slots + part * SLOT + unit * 128 * 16 + thread * 16);
      d[j] += v.x;
      d[j + 1] += v.y;
      d[j + 2] += v.z;
      d[j + 3] += v.w;
    }
  }
}"""

_LAST_TO_ARRIVE = """\
// Whether this warpgroup is the last of `parts` to come here; it then sees what the others have written. The counter is
// zero again afterwards.
__device__ __forceinline__ bool last_to_arrive(u32* counter, int parts, u32 vote, int consumer, int thread) {
  device_fence();
  named_sync(1 + consumer, 128);
  if (thread == 0) {
    const bool last = arrive_global(counter) == parts - 1;
    if (last) *counter = 0;
    store_word(vote, last);
  }
  named_sync(1 + consumer, 128);
  const bool last = load_word(vote) != 0;
  if (last) device_fence();
  return last;
}"""


def _add_slots(one_at_a_time: bool) -> str:
    hidden, parts = "", "work.parts"
    if one_at_a_time:
        hidden, parts = _HIDDEN_PARTS, "parts"
    return f"""\
// Keeps this part of a tile in its slot. The last part to arrive adds all of them, always in the same order; returns
// whether this is it. Every counter is zero again afterwards.
template <int COUNT>
__device__ __forceinline__ bool add_parts(float (&d)[M64][COUNT], const Work& work, float4* slots, int cta,
                                          u32* counter, u32 vote, int consumer, int thread) {{
  constexpr int VECTORS = M64 * COUNT / 4;  // of a thread
  const long long step = (long long)CLUSTER_M * CLUSTER_N * CONSUMERS * VECTORS * 128;  // from slot to slot
  float4* const mine = slots + ((long long)cta * CONSUMERS + consumer) * VECTORS * 128 + thread;
  float4* const part = mine + step * (work.part == 0 ? work.slot : work.next_slot + (work.part - 1) * SLOT_STEP);
  #pragma unroll
  for (int i = 0; i < M64; ++i) {{
    #pragma unroll
    for (int j = 0; j < COUNT; j += 4)
      part[(i * COUNT + j) / 4 * 128] = float4{{d[i][j], d[i][j + 1], d[i][j + 2], d[i][j + 3]}};
  }}
  if (!last_to_arrive(counter, work.parts, vote, consumer, thread)) return false;
  const float4* source = mine + step * work.slot;
  #pragma unroll
  for (int i = 0; i < M64; ++i) {{
    #pragma unroll
    for (int j = 0; j < COUNT; j += 4) {{
      const float4 v = load_global(source + (i * COUNT + j) / 4 * 128);
      d[i][j] = v.x;
      d[i][j + 1] = v.y;
      d[i][j + 2] = v.z;
      d[i][j + 3] = v.w;
    }}
  }}
  source = mine + step * work.next_slot;
{hidden}  #pragma unroll 1
  for (int other = 1; other < {parts}; ++other) {{
    #pragma unroll
    for (int i = 0; i < M64; ++i) {{
      #pragma unroll
      for (int j = 0; j < COUNT; j += 4) {{
        const float4 v = load_global(source + (i * COUNT + j) / 4 * 128);
        d[i][j] += v.x;
        d[i][j + 1] += v.y;
        d[i][j + 2] += v.z;
        d[i][j + 3] += v.w;
      }}
    }}
    source += step * SLOT_STEP;
  }}
  return true;
}}"""


_HIDDEN_PARTS = """\
  int parts = work.parts;
  // Hides that they are two: the compiler would load both at once, for which there are no registers.
  asm volatile("" : "+r"(parts));
"""

_SHARES = """\
// Every part of a tile has a slot of the workspace; in it each warpgroup has M64 x TILE_N / 8 vectors of every thread.
constexpr int PART_STEP = CONSUMERS * M64 * (TILE_N / 8) * 128;  // from part to part
__device__ __forceinline__ float4* part_address(float4* slots, int slot, int consumer, int thread) {
  return slots + (long long)slot * PART_STEP + consumer * M64 * (TILE_N / 8) * 128 + thread;
}

// Keeps columns COLUMN .. COLUMN + WIDTH of a 64-row block of this part in its slot.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void keep_piece(const float (&d)[COUNT], float4* part) {
  #pragma unroll
  for (int unit = COLUMN / 8; unit < (COLUMN + WIDTH) / 8; ++unit)
    part[unit * 128] = float4{d[unit * 4], d[unit * 4 + 1], d[unit * 4 + 2], d[unit * 4 + 3]};
}

// Counts this part, all of which is kept.
__device__ __forceinline__ void count_part(u32* counter, int consumer, int thread) {
  device_fence();
  named_sync(1 + consumer, 128);
  if (thread == 0) arrive_global(counter);
}

// Returns when all parts of the tile are kept. They come without this CTA's help: every CTA of the grid is running.
__device__ __forceinline__ void wait_for_parts(const u32* counter, int consumer, int thread) {
  if (thread == 0) wait_for_count(counter, SPLIT_K);
  named_sync(1 + consumer, 128);
  device_fence();
}

// Asks for columns COLUMN .. COLUMN + WIDTH of a 64-row block in TOGETHER parts, the one `first` after this and on.
template <int COLUMN, int WIDTH, int TOGETHER>
__device__ __forceinline__ void load_parts(float4 (&v)[TOGETHER][WIDTH / 8], const float4* parts, int part, int first) {
  #pragma unroll
  for (int i = 0; i < TOGETHER; ++i) {
    const float4* source = parts + (long long)((part + first + i) % SPLIT_K) * PART_STEP + COLUMN / 8 * 128;
    #pragma unroll
    for (int unit = 0; unit < WIDTH / 8; ++unit)
      v[i][unit] = first + i < SPLIT_K ? load_global(source + unit * 128) : float4{0, 0, 0, 0};
  }
}

// Adds them to this part's, always in the same order.
template <int COLUMN, int WIDTH, int TOGETHER, int COUNT>
__device__ __forceinline__ void add_loaded(float (&d)[COUNT], const float4 (&v)[TOGETHER][WIDTH / 8]) {
  #pragma unroll
  for (int i = 0; i < TOGETHER; ++i) {
    #pragma unroll
    for (int unit = 0; unit < WIDTH / 8; ++unit) {
      const int j = (COLUMN / 8 + unit) * 4;
      d[j] += v[i][unit].x;
      d[j + 1] += v[i][unit].y;
      d[j + 2] += v[i][unit].z;
      d[j + 3] += v[i][unit].w;
    }
  }
}

// Adds more parts than registers hold, with sixteen loads of a thread on their way.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void add_parts(float (&d)[COUNT], const float4* parts, int part) {
  constexpr int TOGETHER = 16 / (WIDTH / 8);
  #pragma unroll 1
  for (int first = 1; first < SPLIT_K; first += TOGETHER) {
    float4 v[TOGETHER][WIDTH / 8];
    load_parts<COLUMN, WIDTH>(v, parts, part, first);
    add_loaded<COLUMN, WIDTH>(d, v);
  }
}

// The last to have added its pieces sets the counter back to zero.
__device__ __forceinline__ void leave_parts(u32* counter, int consumer, int thread) {
  named_sync(1 + consumer, 128);
  if (thread == 0 && arrive_global(counter) == SPLIT_K + OWNERS - 1) *counter = 0;
}"""

_ADD_ATOMIC = """\
// Adds this part of a tile to the sum in the workspace. The last part to arrive takes the sum; returns whether this is
// it. Every sum and counter is zero again afterwards.
template <int COUNT>
__device__ __forceinline__ bool add_parts(float (&d)[M64][COUNT], const Work& work, float4* slots, int cta,
                                          u32* counter, u32 vote, int consumer, int thread) {
  constexpr int VECTORS = M64 * COUNT / 4;  // of a thread
  const long long tile = (long long)work.tile * CLUSTER_M * CLUSTER_N + cta;
  float4* const sum = slots + (tile * CONSUMERS + consumer) * VECTORS * 128 + thread;
  #pragma unroll
  for (int i = 0; i < M64; ++i) {
    #pragma unroll
    for (int j = 0; j < COUNT; j += 4)
      add_global(sum + (i * COUNT + j) / 4 * 128, float4{d[i][j], d[i][j + 1], d[i][j + 2], d[i][j + 3]});
  }
  if (!last_to_arrive(counter, work.parts, vote, consumer, thread)) return false;
  #pragma unroll
  for (int i = 0; i < M64; ++i) {
    #pragma unroll
    for (int j = 0; j < COUNT; j += 4) {
      float4* const source = sum + (i * COUNT + j) / 4 * 128;
      const float4 v = load_global(source);
      *source = float4{0, 0, 0, 0};
      d[i][j] = v.x;
      d[i][j + 1] = v.y;
      d[i][j + 2] = v.z;
      d[i][j + 3] = v.w;
    }
  }
  return true;
}"""
