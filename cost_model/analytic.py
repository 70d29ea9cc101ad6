"""How long a schedule takes, by arithmetic: tensor cores, operand ring, L2, DRAM, power, waves and fixed costs.

The model ranks schedules before anything is compiled, and its terms are features of the learned ranker. It is
pure Python on scalars (tens of microseconds a schedule), so that a query can call it without numpy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, NamedTuple, Protocol

from ..space import (
    DTYPE_BYTES,
    GEMV,
    OUT_DTYPE_BYTES,
    PINGPONG,
    PROMOTED,
    BadInput,
    Device,
    Problem,
    Schedule,
    TileGrid,
    ceil_div,
    kernel_extents,
    shared_memory,
    tile_grid,
)
from ..space.gemv import gemv_registers, gemv_tile
from ..space.resources import (
    REGISTER_OVERHEAD,
    SWIZZLE_BYTES,
    WGMMA_K_BYTES,
    loaded_rows,
    operand_tiles,
    piece_count,
    tile_columns,
    wgmma_groups,
)

GPC_SMS = (18, 18, 18, 18, 18, 16, 16, 10)
"""SMs of each GPC, 132 in all. Which have how many differs from card to card; these agree with an H200 that held 64
clusters of 2, 30 of 4 and 15 of 8, and not 31 or 16."""

HELD = {3: 37, 5: 22, 6: 17, 9: 9}
"""Clusters that H200s held where those GPCs would allow more: with one more, split K takes two waves, half as long
again."""

NEIGHBOURS = 8
"""CTAs launched one after the other whose loads of the same lines L2 answers together. With the tiles of 768 x 1536 x
8960 dealt to CTAs in 24 ways, which take 30 to 57 us, the rows that eight neighbours ask for explain 87 % of the times
(r = 0.93), those of a GPC or of two SMs that share a port nothing."""

SECTOR_BYTES = 32
"""What L2 hands out at least."""

SMEM_RESERVED = 1024
"""Bytes of shared memory that the system keeps for each CTA."""

THREADS_PER_SM = 2048

_NEAR = 0.5
"""log(time / best) at which a measure weighs half of the best one in a fit."""

_PLAUSIBLE = 100
"""Factor within which a constant is near its default: a fit moves it by at most four."""

_INERTIA = 0.1
"""What moving a constant by a factor of e costs a fit, in logarithms of one time."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What the arithmetic needs beside a device's data sheet. Times in ns, rates in bytes/ns, cycles of the SM clock.

    They were fitted, rounded, to 5900 measures of this project's kernels on H200s, 330 problems: to their times, and to
    the ratios of times of schedules of a problem that differ in four dimensions at most, which tell apart what always
    changes together in a search. A fit trades one constant for another: they are good together rather than each by
    itself, some rates are no rates of the hardware, and what ranks best is kept. Numbers in words below were measured
    too.
    """

    smem_bytes_per_cycle: float = 110.0
    """wgmma reads both operands from shared memory: m64n64 is the narrowest at full rate (arXiv:2402.13499)."""
    drain_cycles: float = 140.0
    """From the last wgmma of a k-block to the first of the next when all are awaited."""
    overlap_cycles: float = 2.8
    """The same with one group left in flight."""
    handover_cycles: float = 17.0
    """Lost per k-block by consumers that share a tile: k-blocks of 128 gain 1 to 3 % over 64."""
    latency_ns: float = 780.0
    """From freeing a stage to its next contents under load: decode with 2, 3, 4 stages takes 0.93, 0.52, 0.41 us
    a k-block (times of another kernel)."""
    kept: float = 0.7
    """Part of a k-block's time that a stage is kept longer with one group left in flight."""
    odd_columns: float = 1.2
    """Slow-down of products whose columns lie along the rows of their operand, where the tile is no multiple of 16
    columns: 0 to 50 %."""
    outside_ns: float = 2.0
    """A row of 128 bytes outside the matrix, which TMA fills with zeros before it goes on: in tiles of 64 rows, 16
    take up to twice as long as with the operands swapped."""
    intake_bytes_per_ns: float = 185.0
    """Most that one SM takes in, as it acts on the time: where many SMs stream the same 16 KB at a time, 78 bytes a
    clock."""
    edge_bytes: float = 64.0
    """What memory could move otherwise while a sector of D is put together that two tiles write: tiles whose rows in D
    end inside sectors take 5 to 8 % longer where K is 1024 at most."""
    misaligned: float = 1.25
    """Slow-down of loads from rows that begin at odd multiples of 16 bytes: 4096 x 4096 x 4104 takes a third longer
    than 4096^3 where no CTAs share loads, and no longer where two share the wider operand. L2 does not answer them
    together either: the tiles of 1000 x 1000 x 1000 take 8.8 to 9.8 us however they are dealt to CTAs."""
    straddling: float = 1.31
    """Slow-down of loads that bring 256 bytes into L2 where rows do not begin at multiples of 128: kernels take 5 % and
    more longer than with 128, 10 to 15 % where rows begin inside sectors."""
    l2_bytes_per_ns: float = 9500.0
    """What L2 hands out to all SMs, as it acts on the time: 35 bytes a clock for each of 132 SMs where no two ask for
    the same."""
    multicast_together: float = 1.5
    """Loads for several CTAs of a cluster that L2 answers together, on average, as it acts on the time: by ncu's count
    of sectors, nine in ten reach L2, where of single loads four in ten do."""
    l2_share: float = 0.842
    """Size of the L2 as it acts, in its real size: CTAs walk along K together, so that a wave needs less than the whole
    panels by which traffic is counted."""
    crowding: float = 0.01
    """Slow-down of memory-bound work when the ring fills shared memory instead of holding `enough_bytes`."""
    enough_bytes: float = 65e3
    """Bytes in flight per SM that saturate DRAM."""
    epilogue_cycles: float = 180.0
    element_cycles: float = 12.0
    """Epilogue of a tile: fixed, and for each element a thread holds."""
    direct_element_cycles: float = 48.0
    """The same with stores straight from registers, whose rows are not coalesced."""
    residual_element_cycles: float = 150.0
    """A residual that its consumers read themselves, for each element a thread holds: 120 to 175."""
    piece_cycles: float = 57.0
    """For each chunk of the epilogue; its buffer is waited for when it is the only one."""
    turn_cycles: float = 54.0
    """Passing the tensor cores from one ping-pong warpgroup to the other."""
    launch_ns: float = 1700.0
    """Launch, barriers, tensor maps and the last store: with a ring to fill, decode takes 3 us more than its bytes."""
    barrier_ns: float = 16.0
    """Initialising one mbarrier where each lane has one: some 12 instructions in turn, by the machine code."""
    cluster_launch_ns: float = 330.0
    reduce_ns: float = 82.0
    reduce_bytes_per_ns: float = 13.0
    """Adding the parts of a split K through distributed shared memory: fixed, and for the fp32 sums an SM sends."""
    workspace_ns: float = 3900.0
    """A part that goes through device memory: stores, a fence and a counter."""
    part_ns: float = 145.0
    part_bytes_per_ns: float = 130.0
    """Each part that the last to arrive reads, one round trip after the other."""
    atomic_bytes_per_ns: float = 38.0
    """fp32 sums that one SM adds to device memory."""
    stream_ns: float = 5000.0
    """What is added when stream-K cuts tiles."""
    evicted: float = 0.29
    """Part of an operand that DRAM reads again where it leaves L2 first although several tiles need it: 131072 x 256 x
    256 takes 14 to 34 % longer with that hint."""
    unhinted: float = 0.026
    """Slow-down of memory-bound work whose streamed operand does not leave L2 first (1 to 5 %)."""
    early_ns: float = 110.0
    """What asking for the first stages before all else saves: 0.08 to 0.14 us of kernels of 5 to 50 us."""
    wait_saves_ns: float = 710.0
    weights_save_ns: float = 940.0
    """What a dependent launch saves by starting early, and by loading weights early (0.75 to 1.65 us at 16 rows)."""
    cta_ns: float = 270.0
    """Starting one CTA after another where a kernel is not persistent."""
    gemv_launch_ns: float = 2630.0
    """Launch of a kernel without barriers and tensor maps, its shuffles and its stores."""
    gemv_latency_ns: float = 180.0
    """From asking for a slice to having it, under load."""
    gemv_intake_bytes_per_ns: float = 52.0
    """Most that one SM takes in by ordinary loads."""
    flop_pj: float = 0.4
    dram_pj: float = 29.0
    l2_pj: float = 17.0
    fill_pj: float = 5.5
    """Energy of a 16-bit FLOP (half of it is assumed for 8 bits, not measured), and of a byte from DRAM, from L2 and
    into shared memory: 1 pJ a FLOP in all."""
    full_load_w: float = 380.0
    """Power above the static part at which the clock is lowest."""
    clock_drop_mhz: float = 510.0
    """By which that load lowers the clock: 1980 to 1430 MHz at 8192^3; 1650 at 2048^3, 1820 in decode."""
    sharpness: float = 4.05
    """Exponent that joins limits: infinite for a roofline, smaller where limits that are close add up."""

    @classmethod
    def from_json(cls, obj: Mapping[str, Any], device: Device) -> Constants:
        """The constants with the names and values of `obj`, for estimates on `device`.

        Raises:
            BadInput: a value is not a number near its default, or leaves the device no clock or no shared memory.
            TypeError: a name is unknown.
        """
        found = cls(**obj)
        most = {"clock_drop_mhz": device.max_clock_mhz, "enough_bytes": device.smem_per_cta}
        for field in fields(cls):
            value, usual = getattr(found, field.name), getattr(H200_CONSTANTS, field.name)
            low, high = usual / _PLAUSIBLE, min(usual * _PLAUSIBLE, most.get(field.name, math.inf))
            if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
                raise BadInput(f"{field.name} is {value!r}: valid is a number between {low:g} and {high:g}")
        return found


H200_CONSTANTS = Constants()


class Terms(NamedTuple):
    """The parts of an estimate, in microseconds, and what they were made from."""

    total_us: float
    tensor_us: float
    """Tensor cores alone, at the clock the power leaves, whole waves."""
    ring_us: float
    """Latency of the ring over its stages."""
    intake_us: float
    l2_us: float
    dram_us: float
    epilogue_us: float
    """Epilogues that no product hides."""
    fixed_us: float
    clock_mhz: float
    waves: float
    rounds: int
    """Tiles of the busiest CTA."""
    k_blocks: int
    """Those that a CTA takes of a tile."""
    ctas_per_sm: int
    traffic: float
    """Bytes through DRAM."""


def estimate_us(problem: Problem, schedule: Schedule, device: Device, constants: Constants = H200_CONSTANTS) -> float:
    """Expected time of one call in microseconds, sustained. The schedule must be valid for the problem."""
    return analyse(problem, schedule, device, constants).total_us


def floor_us(problem: Problem, device: Device, constants: Constants = H200_CONSTANTS) -> float:
    """What no schedule goes below: the product at the sustained clock, its bytes, and a launch. In microseconds."""
    per_clock = device.tensor_rate(DTYPE_BYTES[problem.dtype]) * device.sm_count
    tensor = problem.flops / per_clock / (device.max_clock_mhz - constants.clock_drop_mhz)
    return max(tensor, problem.bytes / device.dram_bytes_per_s * 1e6) + constants.launch_ns / 1e3


def analyse(problem: Problem, s: Schedule, device: Device, c: Constants = H200_CONSTANTS) -> Terms:
    """The estimate and its parts."""
    if s.arrangement == GEMV:
        return _analyse_gemv(problem, s, device, c)
    element = DTYPE_BYTES[problem.dtype]
    rows, columns = kernel_extents(problem, s)
    grid = tile_grid(problem, s)
    k_blocks = ceil_div(grid.k_blocks, s.split_k)
    resident = resident_clusters(s, device)
    units = grid.clusters * grid.parts
    # CTAs that share an SM share its tensor cores and its intake; a short grid spreads over the SMs first.
    sharing = min(ctas_per_sm(problem, s, device), ceil_div(units, resident))
    resident *= sharing
    rounds = ceil_div(units, resident)
    # Stream-K gives every CTA the same share of what does not fill a wave.
    serial_units = units / resident if s.stream_k else float(rounds)
    running = min(units, resident) * s.cluster_size

    # One k-block of one CTA. Rows outside the matrix are filled with zeros and not fetched.
    a_bytes = min(s.tile_m, rows) * s.tile_k * element
    b_bytes: float = min(s.tile_n, columns) * s.tile_k * element
    if s.held_blocks:
        # Loaded once for as many tiles as follow each other in a column.
        b_bytes /= max(1, min(s.swizzle, grid.m, rounds))
    l2_block = a_bytes / s.cluster_n + b_bytes / s.cluster_m
    first, second = s.operands
    a_cost, b_cost = _row_cost(problem, s, first, c), _row_cost(problem, s, second, c)
    a_asked, b_asked = a_bytes / s.cluster_n * a_cost, b_bytes / s.cluster_m * b_cost
    asked = a_asked + b_asked
    a_together, b_together = asked_together(grid, s, units, c)
    # Lines of rows that begin inside sectors are asked for by each.
    handed_out = a_asked / (1.0 if misaligned(problem, first) else a_together)
    handed_out += b_asked / (1.0 if misaligned(problem, second) else b_together)
    block = _tensor_cycles(s, device, element, c)
    if odd_columns(problem, s):
        block *= c.odd_columns
    alone = _issue_cycles(problem, s, block, c)
    issue = max(alone, sharing * block)
    epilogue = _epilogue_cycles(problem, s, c)
    outside = _rows_outside(problem, s, rows, columns) * s.tile_k * element / SWIZZLE_BYTES
    outside_ns = sharing * outside * c.outside_ns
    intake_ns = sharing * asked / c.intake_bytes_per_ns
    l2_ns = running * handed_out / c.l2_bytes_per_ns

    traffic = dram_traffic(problem, s, grid, resident, device, c)
    crowd = (a_bytes + (0 if s.held_blocks else b_bytes)) * s.stages - c.enough_bytes
    dram_ns = traffic / device.dram_bytes_per_s * 1e9
    dram_ns *= 1 + c.crowding * max(0.0, crowd) / (device.smem_per_cta - c.enough_bytes)
    edges_ns = _split_sectors(problem, s) * c.edge_bytes / device.dram_bytes_per_s * 1e9
    if once := read_once(grid, s):
        dram_ns *= 1 + c.unhinted * (s.evict_first != once)
    fixed_ns = c.launch_ns + c.latency_ns + (c.cluster_launch_ns if s.cluster_size > 1 else 0.0)
    # Where whole tiles fill the waves stream-K cuts none.
    added_up = units % resident > 0 if s.stream_k else rounds
    parts_ns = added_up * _part_ns(problem, s, serial_units, c)
    if s.straight_start:
        fixed_ns -= 2 * s.stages * c.barrier_ns
    if s.asks_early:
        fixed_ns -= c.early_ns
        unshared = a_bytes * a_cost + b_bytes * b_cost - asked
        fixed_ns += min(s.alone_stages, k_blocks) * unshared / c.intake_bytes_per_ns
    if s.dependent_launch:
        fixed_ns -= c.weights_save_ns if s.dependent_launch == "weights" else c.wait_saves_ns
    # Another CTA of the SM works while one starts or ends.
    restart_ns = 0.0 if s.persistent or sharing > 1 else (rounds - 1) * (c.latency_ns + c.cta_ns)
    hidden_end = s.arrangement == PINGPONG and s.persistent

    def ring_ns(issue_ns: float) -> float:
        # A stage is on its way for the latency, then in use until its products are done.
        return (c.latency_ns + (1 + c.kept * s.mma_in_flight) * issue_ns) / s.stages

    def total_ns(mhz: float) -> float:
        issue_ns = issue * 1e3 / mhz
        main = k_blocks * _join(c.sharpness, issue_ns, ring_ns(issue_ns), intake_ns, l2_ns)
        end = epilogue * 1e3 / mhz
        if hidden_end:
            turn = c.turn_cycles * 1e3 / mhz
            busy = serial_units * max(main + turn, (main + end) / 2) + end
        else:
            ends = 1.0 if sharing > 1 else max(1.0, serial_units)
            busy = serial_units * main + parts_ns + ends * end
            if sharing > 1:
                # However well CTAs of an SM hide each other's waits, each has its own from start to end.
                alone_ns = alone * 1e3 / mhz
                life = c.cta_ns + c.latency_ns + k_blocks * max(alone_ns, ring_ns(alone_ns)) + end
                busy = _join(c.sharpness, busy, rounds * life + parts_ns)
        zeros = serial_units * k_blocks * outside_ns
        return _join(c.sharpness, busy + restart_ns, dram_ns) + zeros + edges_ns + fixed_ns

    blocks = grid.ctas * k_blocks
    energy_pj = (
        c.flop_pj * problem.flops * element / 2
        + c.dram_pj * traffic
        + blocks * (c.l2_pj * l2_block + c.fill_pj * (a_bytes + b_bytes))
    )
    # The power at the lowest clock tells kernels apart without solving for the clock at which it is drawn.
    watts = energy_pj / total_ns(device.max_clock_mhz - c.clock_drop_mhz) / 1e3
    clock = device.max_clock_mhz - c.clock_drop_mhz * min(1.0, watts / c.full_load_w)
    serial = serial_units * k_blocks / 1e3
    return Terms(
        total_us=total_ns(clock) / 1e3,
        tensor_us=serial * block * 1e3 / clock,
        ring_us=serial * ring_ns(issue * 1e3 / clock),
        intake_us=serial * (intake_ns + outside_ns),
        l2_us=serial * l2_ns,
        dram_us=dram_ns / 1e3,
        epilogue_us=(1 if hidden_end else serial_units) * epilogue / clock,
        fixed_us=(fixed_ns + restart_ns) / 1e3,
        clock_mhz=clock,
        waves=units / resident,
        rounds=rounds,
        k_blocks=k_blocks,
        ctas_per_sm=sharing,
        traffic=traffic,
    )


def _analyse_gemv(problem: Problem, s: Schedule, device: Device, c: Constants) -> Terms:
    """The estimate for weights that stream through registers: bytes, loads in flight, fp32 arithmetic, launch."""
    grid = tile_grid(problem, s)
    tile = gemv_tile(problem, s)
    per_sm = ctas_per_sm(problem, s, device)
    waves = grid.ctas / (per_sm * device.sm_count)
    k_blocks = ceil_div(ceil_div(grid.k_blocks, s.split_k), s.stages) * s.stages
    slice_bytes = s.tile_n * s.tile_k * DTYPE_BYTES[problem.dtype]
    # The SM with most CTAs ends last; while it has none to start, it takes in what they have in flight a round trip.
    most = ceil_div(grid.ctas, device.sm_count)
    taken = most * ceil_div(grid.k_blocks, s.split_k) * slice_bytes
    at_once = min(most, per_sm) * s.stages * slice_bytes
    ring_ns = taken / at_once * c.gemv_latency_ns
    intake_ns = taken / c.gemv_intake_bytes_per_ns
    # Of each element: unpacking it, a product for each vector, and the vectors' own unpacking, shared by some.
    operations = 1.5 + s.tile_m * (1 + (1 if tile.k_major else 1 / 8) / tile.loads)
    lanes_per_cycle = 128
    cycles = most * k_blocks * s.tile_n * s.tile_k * operations / lanes_per_cycle
    arithmetic_ns = cycles * 1e3 / device.max_clock_mhz
    dram_ns = problem.bytes / device.dram_bytes_per_s * 1e9 * (1 + c.unhinted * (s.evict_first == ""))
    fixed_ns = c.gemv_launch_ns + c.gemv_latency_ns
    if s.split_k > 1:
        fixed_ns += c.workspace_ns
    if s.dependent_launch:
        fixed_ns -= c.weights_save_ns if s.dependent_launch == "weights" else c.wait_saves_ns
    restart_ns = (ceil_div(grid.ctas, per_sm * device.sm_count) - 1) * (c.gemv_latency_ns / per_sm + c.cta_ns)
    busy_ns = _join(c.sharpness, ring_ns, intake_ns, arithmetic_ns) + restart_ns
    return Terms(
        total_us=(_join(c.sharpness, busy_ns, dram_ns) + fixed_ns) / 1e3,
        tensor_us=arithmetic_ns / 1e3,
        ring_us=ring_ns / 1e3,
        intake_us=intake_ns / 1e3,
        l2_us=problem.bytes / c.l2_bytes_per_ns / 1e3,
        dram_us=dram_ns / 1e3,
        epilogue_us=0.0,
        fixed_us=(fixed_ns + restart_ns) / 1e3,
        clock_mhz=device.max_clock_mhz,
        waves=waves,
        rounds=ceil_div(grid.ctas, per_sm * device.sm_count),
        k_blocks=k_blocks,
        ctas_per_sm=per_sm,
        traffic=problem.bytes,
    )


def _row_cost(problem: Problem, s: Schedule, operand: str, c: Constants) -> float:
    """What loading an operand costs, as a multiple of what it costs where all rows begin at whole sectors."""
    cost = c.misaligned if misaligned(problem, operand) else 1.0
    return cost * c.straddling if straddles(problem, s, operand) else cost


def row_bytes(problem: Problem, operand: str) -> int:
    """From the beginning of one row of an operand in memory to that of the next."""
    return problem.stored(operand)[1] * DTYPE_BYTES[problem.dtype]


def misaligned(problem: Problem, operand: str) -> bool:
    """Whether rows of an operand begin inside a sector of L2."""
    return row_bytes(problem, operand) % SECTOR_BYTES != 0


def straddles(problem: Problem, s: Schedule, operand: str) -> bool:
    """Whether 128 bytes of a row may lie in two of the larger pieces that a load brings into L2."""
    return s.l2_promotion > SWIZZLE_BYTES and row_bytes(problem, operand) % SWIZZLE_BYTES != 0


def _rows_outside(problem: Problem, s: Schedule, rows: int, columns: int) -> int:
    """Rows of the CTA's operand tiles that TMA fills with zeros."""
    outside = max(0, s.tile_m - rows) + max(0, s.tile_n - columns)
    if not outside or not s.clip_boxes:
        return outside
    tiles, loaded = operand_tiles(problem, s), loaded_rows(problem, s)
    return sum(
        max(0, (kept if tile.k_major else tile.extent) - extent)
        for tile, kept, extent in zip(tiles, loaded, (rows, columns), strict=True)
    )


def _part_ns(problem: Problem, s: Schedule, serial_units: float, c: Constants) -> float:
    """What a CTA spends to add up the parts of a tile: for each of its tiles, or once in a stream-K kernel."""
    tile_bytes = s.tile_m * s.tile_n * 4
    if s.split_cluster:
        return c.reduce_ns + tile_bytes * (1 - 1 / s.split_k) / c.reduce_bytes_per_ns
    if s.reduction == "atomic":
        return c.workspace_ns + 2 * tile_bytes / c.atomic_bytes_per_ns
    if s.workspace and s.dealt:
        # Parts are loaded at once as far as registers hold them, otherwise by sixteen loads a thread, in turn.
        dealt = ceil_div(piece_count(problem, s), s.split_k) * s.epilogue_n / s.tile_n / s.m64_per_warpgroup
        loads = dealt * (s.split_k - 1) * s.accumulators / 4
        turns = 1 if loads * 4 <= s.accumulators else math.ceil(loads / 16)
        moved = tile_bytes * (1 - 1 / s.split_k) + tile_bytes * dealt * (s.split_k - 1)
        # All wait for the last, and ask one counter.
        return c.workspace_ns + (4 + turns + s.split_k / 4) * c.part_ns + moved / c.part_bytes_per_ns
    if s.workspace:
        # Stream-K cuts a tile in two or three, or in as many parts as it gives a tile CTAs.
        parts = max(2.0, 1 / serial_units) if s.stream_k else s.split_k
        added = c.workspace_ns + parts * (c.part_ns + tile_bytes / c.part_bytes_per_ns)
        return added + (c.stream_ns if s.stream_k else 0.0)
    return 0.0


def _split_sectors(problem: Problem, s: Schedule) -> int:
    """Sectors of 32 bytes of D that two tiles write a part of each."""
    columns = tile_columns(problem, s)
    if s.swap_ab or columns * OUT_DTYPE_BYTES[problem.out_dtype] % SECTOR_BYTES == 0:
        return 0
    return problem.batch * problem.m * (ceil_div(problem.n, columns) - 1)


def odd_columns(problem: Problem, s: Schedule) -> bool:
    """Whether the operand of the tile's columns is not K-major and the tile is no multiple of 16 columns."""
    return s.tile_n % 16 == 8 and (problem.a_major if s.swap_ab else problem.b_major) != "k"


def asked_together(grid: TileGrid, s: Schedule, units: int, c: Constants) -> tuple[float, float]:
    """CTAs that ask for a tile of the kernel's A, and of its B, at one time, so that L2 hands it out once.

    Those are neighbours in the order of launch; where CTAs share loads already, a load for several is seldom put
    together with another.
    """
    if s.multicast:
        return c.multicast_together, c.multicast_together
    # CTAs of a cluster come side by side, each with its part of K, and clusters one after the other.
    tiles = NEIGHBOURS / (1 if s.split_cluster or s.parts_apart else grid.parts)
    tiles = max(1.0, min(tiles, units / grid.parts))
    fast_tiles, slow_tiles = (grid.m, grid.n) if s.raster == "m" else (grid.n, grid.m)
    width = min(s.swizzle, fast_tiles)
    fast = min(float(width), tiles)
    steps = tiles / width
    # Neighbours that do not fill whole rows of the band begin and end inside one.
    slow = steps if steps >= 1 and steps == int(steps) else steps + 1 - 1 / width
    if slow > slow_tiles:
        fast, slow = min(float(fast_tiles), tiles / slow_tiles), float(slow_tiles)
    fast_together, slow_together = max(1.0, tiles / fast), max(1.0, tiles / slow)
    return (fast_together, slow_together) if s.raster == "m" else (slow_together, fast_together)


def read_once(grid: TileGrid, s: Schedule) -> str:
    """The operand (`a` or `b`) that is read only once, that whose axis has the many tiles; no word where both are read
    again."""
    if grid.m > 1 and grid.n > 1:
        return ""
    return "a" if (grid.n == 1) != s.swap_ab else "b"


def ctas_per_sm(problem: Problem, s: Schedule, device: Device) -> int:
    """CTAs of a schedule that share an SM: of a persistent kernel one is launched for each, of others what fits."""
    if s.persistent or s.cluster_size > 1 or s.consumer_regs:
        return 1
    needed = gemv_registers(problem, s) if s.arrangement == GEMV else s.accumulators + REGISTER_OVERHEAD
    registers = s.threads * ceil_div(min(255, needed), 8) * 8
    memory = shared_memory(problem, s).total + SMEM_RESERVED
    fitting = (
        device.registers_per_sm // registers,
        (device.smem_per_cta + SMEM_RESERVED) // memory,
        THREADS_PER_SM // s.threads,
    )
    return max(1, min(fitting))


def resident_clusters(s: Schedule, device: Device) -> int:
    """Clusters of a schedule that run at once, with one CTA on an SM."""
    clusters = clusters_at_once(s.cluster_size, device)
    return max(1, min(clusters, s.ctas // s.cluster_size)) if s.persistent and s.ctas else clusters


@functools.cache
def clusters_at_once(size: int, device: Device) -> int:
    """Clusters of `size` CTAs that the device holds: each inside one GPC, so that larger ones leave SMs idle."""
    held = HELD.get(size, sum(sms // size for sms in GPC_SMS))
    return max(1, held * device.sm_count // sum(GPC_SMS))


def _tensor_cycles(s: Schedule, device: Device, element: int, c: Constants) -> float:
    """Cycles that one k-block keeps the tensor cores of an SM busy."""
    flops = 64 * s.tile_n * (WGMMA_K_BYTES // element) * 2
    tensor = flops / device.tensor_rate(element)
    shared = (64 + s.tile_n) * WGMMA_K_BYTES / c.smem_bytes_per_cycle
    return s.tile_m // 64 * (s.tile_k * element // WGMMA_K_BYTES) * max(tensor, shared)


def _issue_cycles(problem: Problem, s: Schedule, block: float, c: Constants) -> float:
    """Cycles of one k-block as the consumers issue it: the tensor cores, or one warpgroup's own chain of waits."""
    drain = c.overlap_cycles if s.mma_in_flight else c.drain_cycles
    if problem.accumulate == PROMOTED:
        # Every group is awaited, and then a warp adds up 32 sums a cycle.
        drain = wgmma_groups(problem, s) * (drain + s.accumulators)
    if s.arrangement == PINGPONG:
        return block + drain
    return max(block + c.handover_cycles * (s.consumers - 1), block / s.consumers + drain)


def _epilogue_cycles(problem: Problem, s: Schedule, c: Constants) -> float:
    elements = s.tile_m * s.tile_n / (128 * s.warpgroups_per_tile)
    if s.store == "direct":
        return c.epilogue_cycles + c.direct_element_cycles * elements
    waits = 4 if s.epilogue_buffers == 1 else 1
    each = c.element_cycles + c.residual_element_cycles * (problem.fused.residual and not s.residual_buffers)
    return c.epilogue_cycles + each * elements + c.piece_cycles * waits * piece_count(problem, s)


def dram_traffic(
    problem: Problem, s: Schedule, grid: TileGrid, resident: int, device: Device, c: Constants = H200_CONSTANTS
) -> float:
    """Bytes through DRAM: each operand as often as the walk over the tiles finds it gone from L2, and D once; with a
    batch as much for each product, of operands that all share once where they stay in L2.

    Inside a band the operand along the raster axis is a panel that stays; the other is streamed once a band.
    """
    element = DTYPE_BYTES[problem.dtype]
    rows, columns = kernel_extents(problem, s)
    a, b = rows * problem.k * element, columns * problem.k * element
    fast, slow, fast_tiles = (a, b, grid.m) if s.raster == "m" else (b, a, grid.n)
    bands = ceil_div(fast_tiles, s.swizzle)
    waves = max(1.0, grid.m * grid.n / resident)
    cache = c.l2_share * device.l2_bytes
    panel = fast / bands
    lost_panel = min(1.0, max(0.0, panel / cache - 1))
    lost_slow = max(0.0, 1 - cache / slow) if s.serpentine else min(1.0, max(0.0, (slow + panel) / cache - 1))
    again_slow = min(bands, waves) - 1
    again_fast = max(0.0, waves / bands - 1)
    output = problem.m * problem.n * OUT_DTYPE_BYTES[problem.out_dtype] * (1 + problem.fused.residual)
    if s.stream_k:
        # CTAs that share a tile's operands are at different places of K and find them gone.
        streamed = min(1.0, 1.5 * resident / grid.clusters)
        lost = streamed * max(0.0, 1 - cache / (a + b))
        output += int(lost * (a * (grid.n - 1) + b * (grid.m - 1)))
    # What is to leave L2 first is gone when the next tile asks for it.
    if s.evict_first and not read_once(grid, s):
        output += int(c.evicted * (problem.m if s.evict_first == "a" else problem.n) * problem.k * element)
    product = fast * (1 + again_fast * lost_panel) + slow * (1 + again_slow * lost_slow) + output
    if not problem.batched:
        return product
    first, second = s.operands
    shared = sum(size for name, size in ((first, a), (second, b)) if problem.copies(name) == 1 and size < cache)
    return problem.batch * product - (problem.batch - 1) * shared


def _join(sharpness: float, *limits: float) -> float:
    """The largest of the limits, a little more where others are close to it."""
    most = max(limits)
    total = 0.0
    for limit in limits:
        total += (limit / most) ** sharpness
    return float(most * total ** (1 / sharpness))


class Timed(Protocol):
    """A measured time, such as a journal's measure."""

    @property
    def problem(self) -> Problem: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def median_us(self) -> float | None: ...


def fit(
    measures: Sequence[Timed], device: Device, start: Constants = H200_CONSTANTS, held: Collection[str] = ()
) -> Constants:
    """The constants that agree best with measured times, each kept within a factor of four of `start`; those named
    in `held` stay.

    Least squares on the logarithm of the ratio, with a loss that outliers do not dominate (scipy). Schedules near the
    best of their problem weigh most.
    """
    import numpy as np
    from scipy.optimize import least_squares

    timed = [(m.problem, m.schedule, math.log(m.median_us)) for m in measures if m.median_us is not None]
    best: dict[Problem, float] = {}
    for problem, _, time in timed:
        best[problem] = min(time, best.get(problem, time))
    weights = np.array([1 / (1 + ((time - best[problem]) / _NEAR) ** 2) for problem, _, time in timed]) ** 0.5
    first = np.array(astuple(start))

    def residuals(logs: Any) -> Any:
        constants = Constants(*(first * np.exp(logs)).tolist())
        expected = [math.log(estimate_us(problem, s, device, constants)) for problem, s, _ in timed]
        off = weights * (np.array(expected) - np.array([time for _, _, time in timed]))
        # What the measures say nothing about stays where it is.
        return np.concatenate([off, _INERTIA * logs])

    bounds = np.array([1e-9 if f.name in held else math.log(4) for f in fields(Constants)])
    found = least_squares(residuals, np.zeros(len(bounds)), bounds=(-bounds, bounds), loss="soft_l1", f_scale=0.1)
    return Constants(*(first * np.exp(found.x)).tolist())
