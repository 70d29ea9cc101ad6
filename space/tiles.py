"""How the output is cut into tiles, and in which order a persistent kernel walks over them."""

from __future__ import annotations

from typing import NamedTuple

from .problem import Problem
from .schedule import Schedule


def ceil_div(a: int, b: int) -> int:
    """The smallest integer not below a / b, for a >= 0 and b > 0."""
    return -(-a // b)


class TileGrid(NamedTuple):
    """The output cut into CTA tiles, and those gathered into cluster tiles.

    What is walked over is clusters, so that every CTA of a cluster always has a tile: the grid is rounded up
    to whole clusters, and tiles outside the output read zeros and store nothing.
    """

    m: int
    n: int
    """Cluster tiles along the rows and columns of what the kernel computes."""
    k_blocks: int
    """Stages that one tile consumes, over all CTAs that share its K."""
    cluster_size: int
    parts: int
    """Units of work of a tile, for kernels that add them up in device memory; stream-K cuts as it needs."""
    batch: int = 1
    """Products, each with its m x n tiles."""

    @property
    def clusters(self) -> int:
        """Cluster tiles of the whole problem."""
        return self.m * self.n * self.batch

    @property
    def ctas(self) -> int:
        """CTAs that the whole problem keeps busy, those that only fill a cluster included."""
        return self.clusters * self.cluster_size * self.parts


def kernel_extents(problem: Problem, schedule: Schedule) -> tuple[int, int]:
    """Rows and columns of the product that the kernel computes: D, or with `swap_ab` its transpose."""
    return (problem.n, problem.m) if schedule.swap_ab else (problem.m, problem.n)


def tile_grid(problem: Problem, schedule: Schedule) -> TileGrid:
    """The tiles of `problem` under `schedule`."""
    rows, columns = kernel_extents(problem, schedule)
    return TileGrid(
        m=ceil_div(rows, schedule.tile_m * schedule.cluster_m),
        n=ceil_div(columns, schedule.tile_n * schedule.cluster_n),
        k_blocks=ceil_div(problem.k, schedule.tile_k),
        cluster_size=schedule.cluster_size,
        parts=schedule.split_k if schedule.workspace else 1,
        batch=problem.batch,
    )


def tile_position(
    index: int, tiles_m: int, tiles_n: int, raster: str, swizzle: int, serpentine: bool
) -> tuple[int, int, int]:
    """The (m, n, batch) position of the cluster tile that is walked over as number `index`.

    The products of a batch come one after the other. The grid of each is cut into bands of `swizzle` tiles along the
    raster axis; inside a band consecutive tiles run along that axis, then step along the other. The last band is as
    tall as what is left, so that no factor adds a tile. With `serpentine` odd bands walk the other axis backwards,
    which keeps its operand in L2.
    The kernel evaluates the same expression (`tile_position` in the generated source).
    """
    batch, index = divmod(index, tiles_m * tiles_n)
    fast_tiles, slow_tiles = (tiles_m, tiles_n) if raster == "m" else (tiles_n, tiles_m)
    band, offset = divmod(index, swizzle * slow_tiles)
    height = min(swizzle, fast_tiles - band * swizzle)
    slow, fast = divmod(offset, height)
    fast += band * swizzle
    if serpentine and band % 2:
        slow = slow_tiles - 1 - slow
    return (fast, slow, batch) if raster == "m" else (slow, fast, batch)
