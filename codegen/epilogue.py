"""The epilogue: accumulators to D, through shared memory and TMA or directly."""

from __future__ import annotations

from ..space import Schedule, store_pieces


def functions(s: Schedule) -> list[str]:
    """Device functions the epilogue calls."""
    return [_STAGE_PIECE] if s.store == "tma" else [_STORE_DIRECT]


def call(s: Schedule) -> list[str]:
    """Lines of the consumer that write its rows of the tile at (row, column)."""
    if s.store == "direct":
        return ["store_direct(accumulators, d, d_pitch, row, column, m, n);"]
    lines = []
    order = 0
    for block in range(s.m64_per_warpgroup):
        for column, width in store_pieces(s.tile_n, s.epilogue_n):
            chunk = order % s.epilogue_buffers
            # The first wait is for the tile before, whose stores had a whole main loop to finish.
            if order == 0:
                lines += ["if (thread == 0) tma_store_wait<0>();", "named_sync(1 + consumer, 128);"]
            elif order >= s.epilogue_buffers:
                lines += ["if (thread == 0) tma_store_wait<BUFFERS - 1>();", "named_sync(1 + consumer, 128);"]
            target = "chunks" if chunk == 0 else f"chunks + {chunk} * CHUNK"
            row = "row" if block == 0 else f"row + {64 * block}"
            lines += [
                f"stage_piece<{column}, {width}>(accumulators[{block}], {target}, thread);",
                "named_sync(1 + consumer, 128);",
                f"if (thread == 0) tma_store(map_d{width}, column + {column}, {row}, {target});",
            ]
            order += 1
    return lines


_STAGE_PIECE = """\
// Writes columns COLUMN .. COLUMN + WIDTH of a 64-row block to shared memory, in the swizzle its TMA store reads:
// 16-byte units of a row are exchanged so that eight consecutive rows fall into different banks.
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void stage_piece(const float (&d)[COUNT], u32 chunk, int thread) {
  const int row = thread / 32 * 16 + thread % 16;
  const u32 exchange = row / (64 / WIDTH) % (WIDTH / 8);
  const u32 start = chunk + row * WIDTH * 2;
  if constexpr (WIDTH == 8) {
    constexpr int j = COLUMN / 2;
    stmatrix_x2(start, pack(d[j], d[j + 1]), pack(d[j + 2], d[j + 3]));
  } else {
    #pragma unroll
    for (int unit = 0; unit < WIDTH / 8; unit += 2) {
      const int j = (COLUMN / 8 + unit) * 4;
      stmatrix_x4(start + ((unit + thread % 32 / 16) ^ exchange) * 16, pack(d[j], d[j + 1]), pack(d[j + 2], d[j + 3]),
                  pack(d[j + 4], d[j + 5]), pack(d[j + 6], d[j + 7]));
    }
  }
  proxy_fence();
}"""

_STORE_DIRECT = """\
// Each thread stores pairs of elements from its registers: rows thread/4 and thread/4 + 8 of its warp's 16.
template <int COUNT>
__device__ __forceinline__ void store_direct(const float (&d)[M64][COUNT], unsigned short* target, long long pitch, int row,
                                             int column, int m, int n) {
  const int thread = threadIdx.x % 128;
  const int first = row + thread / 32 * 16 + thread % 32 / 4;
  const int pair = column + thread % 4 * 2;
  #pragma unroll
  for (int i = 0; i < M64; ++i) {
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = first + 64 * i + 8 * half;
      if (at >= m) continue;
      #pragma unroll
      for (int j = 0; j < COUNT / 4; ++j)
        if (pair + 8 * j < n)
          *(u32*)(target + at * pitch + pair + 8 * j) = pack(d[i][4 * j + 2 * half], d[i][4 * j + 2 * half + 1]);
    }
  }
}"""
