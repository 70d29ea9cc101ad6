"""The road map of Hopper matmul as pairs to measure: each choice on and off, all else equal, where it should matter."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..heuristics.query import best_schedule
from ..heuristics.table import Table
from ..space import LAYOUTS, BadInput, Device, Problem, Schedule, nearest, sample, shown, violations
from ..space.problem import OVERLAPS

Changes = Mapping[str, Any]
"""Fields of a schedule and the values that they get."""

PROBLEMS: Mapping[str, Problem] = {
    "square": Problem(8192, 8192, 8192),
    "prefill": Problem(2048, 6144, 4096),
    "small_square": Problem(2048, 2048, 2048),
    "short_k": Problem(8192, 32768, 512),
    "long_k": Problem(2048, 2048, 65536),
    "one_tile": Problem(256, 256, 65536),
    "few_tiles": Problem(512, 1280, 8192),
    "wave_and_a_bit": Problem(2304, 2048, 8192),
    "thousand": Problem(1000, 1000, 1000),
    "decode_16": Problem(16, 6144, 4096),
    "decode_wide": Problem(16, 28672, 4096),
    "flat": Problem(512, 4096, 4096),
    "decode_64": Problem(64, 8192, 8192),
    "decode_overlap": Problem(16, 4096, 4096, overlap="weights"),
    "residual": Problem(8192, 8192, 1024, epilogue="residual"),
    "residual_prefill": Problem(2048, 4096, 4096, epilogue="bias+gelu+residual"),
}
"""What the rows are measured on: large and power-limited, one wave, much K, little K, decode, with a residual."""


@dataclass(frozen=True)
class Row:
    """One choice of the road map. Each of `on` makes a pair with `off` on each of the problems."""

    id: str
    choice: str
    why: str
    """What it trades for what, in one line."""
    on: Sequence[Changes]
    off: Changes
    problems: Sequence[str]
    given: Changes = field(default_factory=dict)
    """What both sides have instead of what the table's schedule has, so that the choice is there to be made."""


@dataclass(frozen=True)
class Pair:
    """Two schedules of one problem that differ in one choice, and in what that choice makes impossible to keep."""

    row: Row
    on_changes: Changes
    problem_name: str
    problem: Problem
    provenance: str
    """Where the schedule comes from that both are made of (`heuristics.query`)."""
    on: Schedule
    off: Schedule

    @property
    def adjusted(self) -> str:
        """In what else they differ, because the rules demand it, in words."""
        on, off = self.on.to_json(), self.off.to_json()
        forced = [name for name in on if on[name] != off[name] and name not in {*self.on_changes, *self.row.off}]
        return ", ".join(f"{name} {on[name]} / {off[name]}" for name in forced)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells pairs apart."""
        return (self.row.id, self.problem_name, self.on.name, self.off.name)


@dataclass(frozen=True)
class Impossible:
    """A pair that the rules forbid, and why."""

    row: Row
    on_changes: Changes
    problem_name: str
    reason: str


_COOPERATIVE = {"arrangement": "coop", "consumers": 2, "tile_m": 128, "tile_k": 64, "stream_k": False}
_PINGPONG = {"arrangement": "pp", "consumers": 2, "tile_m": 128, "tile_k": 64}
_SPLITTABLE = {"arrangement": "coop", "consumers": 1, "tile_m": 64, "tile_n": 64, "tile_k": 128, "stages": 4}
_NO_CLUSTER = {"cluster_m": 1, "cluster_n": 1, "multicast_kind": "slice"}
_ONE_TILE = {"persistent": False, "k_zigzag": False, "ctas": 0, **_NO_CLUSTER}
_NARROW_CHUNKS = {"store": "tma", "epilogue_n": 16, "epilogue_buffers": 2}
_WALK = {"raster": "m", "swizzle": 8, "serpentine": False, "k_zigzag": False}
_REGISTERS = {"producer_regs": 40, "consumer_regs": 232}

ROWS: Sequence[Row] = (
    Row(
        "K3",
        "wgmma groups in flight",
        "The next group is queued before the last has drained; the stage is handed back one k-block later.",
        on=[{"mma_in_flight": 1}],
        off={"mma_in_flight": 0},
        problems=["square", "prefill", "decode_64"],
    ),
    Row(
        "stages",
        "stages of the ring",
        "More loads in flight hide the latency of memory; the space is taken from the epilogue.",
        on=[{"stages": 3}, {"stages": 4}],
        off={"stages": 2},
        problems=["square", "prefill"],
        given={**_PINGPONG, "tile_n": 192, **_REGISTERS, "epilogue_n": 32, "epilogue_buffers": 2, "cluster_n": 1},
    ),
    Row(
        "tile_k",
        "K of a stage",
        "Fewer barriers and waits for the same bytes in flight, in larger steps.",
        on=[{"tile_k": 128, "stages": 4}],
        off={"tile_k": 64, "stages": 8},
        problems=["decode_64", "decode_16"],
        given={"tile_n": 64, "swap_ab": True, **_NO_CLUSTER},
    ),
    Row(
        "one warpgroup",
        "one consumer with half the tile",
        "No other warpgroup to wait for and a deeper ring in the same memory; each operand is read for fewer rows.",
        on=[{"consumers": 1, "tile_m": 64, "stages": 10}],
        off={"consumers": 2, "tile_m": 128, "stages": 7},
        problems=["decode_64", "prefill"],
        given={"arrangement": "coop", "tile_n": 64, "tile_k": 64, "producer_regs": 0, "consumer_regs": 0,
               "persistent": True, "k_zigzag": False, "epilogue_n": 64, "epilogue_buffers": 1, **_NO_CLUSTER},
    ),
    Row(
        "P1",
        "cooperative, persistent",
        "A CTA loads the next tile while it stores the last, and starts once; a tile each leaves that to a new CTA.",
        on=[{"persistent": True}],
        off={"persistent": False},
        problems=["square", "prefill", "short_k"],
        given={**_COOPERATIVE, "tile_n": 192, **_WALK, **_REGISTERS, "ctas": 0},
    ),
    Row(
        "P1",
        "128 CTAs instead of all",
        "Divides power-of-two grids into equal shares, and leaves four SMs idle.",
        on=[{"ctas": 128}],
        off={"ctas": 0},
        problems=["small_square", "square"],
        given={"persistent": True},
    ),
    Row(
        "P2",
        "ping-pong instead of cooperative",
        "One warpgroup's epilogue runs under the other's wgmmas; each needs the accumulators of a whole tile.",
        on=[{"arrangement": "pp"}],
        off={"arrangement": "coop"},
        problems=["square", "prefill", "short_k"],
        given={"consumers": 2, "tile_m": 128, "persistent": True},
    ),
    Row(
        "P6",
        "clusters that share loads",
        "Each operand tile is read from L2 once for all CTAs that share it, and these wait for each other.",
        on=[
            {"cluster_m": m, "cluster_n": n}
            for m, n in ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (2, 4), (4, 2))
        ],
        off={"cluster_m": 1, "cluster_n": 1},
        problems=["square", "prefill"],
        given={**_PINGPONG, "tile_n": 192, "stages": 4, **_REGISTERS, "ctas": 0, "multicast_kind": "slice"},
    ),
    Row(
        "P6",
        "one loads for its cluster, a leader or each in turn",
        "Fewer and larger loads; of a leader fewer arrivals to wait for. Slices, and turns, spread the work evenly.",
        on=[{"multicast_kind": "leader"}, {"multicast_kind": "rotate"}],
        off={"multicast_kind": "slice"},
        problems=["square", "prefill"],
        given={**_PINGPONG, "tile_n": 192, "stages": 4, **_REGISTERS, "ctas": 0, "cluster_m": 2, "cluster_n": 1},
    ),
    Row(
        "P6",
        "one loads for each row and column of 2 x 2, a leader or each in turn",
        "Fewer and larger loads; of a leader fewer arrivals to wait for. Slices, and turns, spread the work evenly.",
        on=[{"multicast_kind": "leader"}, {"multicast_kind": "rotate"}],
        off={"multicast_kind": "slice"},
        problems=["square", "prefill"],
        given={**_PINGPONG, "tile_n": 192, "stages": 4, **_REGISTERS, "ctas": 0, "cluster_m": 2, "cluster_n": 2},
    ),
    Row(
        "R1",
        "registers moved to the consumers",
        "Room for more accumulators; with those that fit anyway it can only cost the two instructions.",
        on=[{"producer_regs": 40, "consumer_regs": 232}, {"producer_regs": 24, "consumer_regs": 240}],
        off={"producer_regs": 0, "consumer_regs": 0},
        problems=["square", "prefill"],
        given={**_COOPERATIVE, "tile_n": 256, "epilogue_n": 64, "epilogue_buffers": 1, **_NO_CLUSTER},
    ),
    Row(
        "L1",
        "swizzle of the tile order",
        "CTAs that run together share rows and columns, so that both operands stay in L2.",
        on=[{"swizzle": swizzle} for swizzle in (2, 4, 8, 16, 32)],
        off={"swizzle": 1},
        problems=["square", "short_k"],
        given={"serpentine": False},
    ),
    Row(
        "L2",
        "raster axis",
        "Which operand is walked over first, and stays in L2 longer.",
        on=[{"raster": "n"}],
        off={"raster": "m"},
        problems=["square", "short_k"],
        given={"swizzle": 8, "serpentine": False},
    ),
    Row(
        "L2",
        "serpentine along m",
        "At the turn of a band the operand that was read last is still in L2.",
        on=[{"serpentine": True}],
        off={"serpentine": False},
        problems=["square", "short_k"],
        given={"swizzle": 8, "raster": "m"},
    ),
    Row(
        "L2",
        "serpentine along n",
        "At the turn of a band the operand that was read last is still in L2.",
        on=[{"serpentine": True}],
        off={"serpentine": False},
        problems=["square", "short_k"],
        given={"swizzle": 8, "raster": "n"},
    ),
    Row(
        "L3",
        "K backwards on odd tiles",
        "The K that the tile before read last is still in L2; matters where the K of a wave exceeds it.",
        on=[{"k_zigzag": True}],
        off={"k_zigzag": False},
        problems=["long_k", "square"],
        given={**_PINGPONG, "tile_n": 128, "split_k": 1, "reduction": "cluster", "stream_k": False, "persistent": True},
    ),
    Row(
        "E3",
        "stores by TMA through shared memory",
        "Whole lines leave in one copy, at the price of a pass through shared memory.",
        on=[{"store": "tma", "epilogue_n": 32, "epilogue_buffers": 2}],
        off={"store": "direct", "epilogue_n": 64, "epilogue_buffers": 2},
        problems=["square", "short_k"],
        given={"stages": 4, "swap_ab": False},
    ),
    Row(
        "E3",
        "narrow chunks of the epilogue",
        "Less shared memory and a first store sooner, in more and smaller stores.",
        on=[{"epilogue_n": 16}, {"epilogue_n": 32}],
        off={"epilogue_n": 64},
        problems=["square", "short_k"],
        given={"store": "tma", "epilogue_buffers": 1, "swap_ab": False},
    ),
    Row(
        "E3",
        "two chunks of the epilogue",
        "One is filled while the other is stored; with one each chunk waits for the store before.",
        on=[{"epilogue_buffers": 2}],
        off={"epilogue_buffers": 1},
        problems=["square", "short_k"],
        given={"store": "tma", "epilogue_n": 32, "swap_ab": False},
    ),
    Row(
        "E5",
        "residual loaded by loader warps",
        "Arrives ahead of the epilogue, in the swizzle of a chunk; otherwise consumers wait for device memory.",
        on=[{"residual_buffers": 1}, {"residual_buffers": 2}],
        off={"residual_buffers": 0},
        problems=["residual", "residual_prefill"],
        given={**_PINGPONG, "tile_n": 128, "stages": 4, **_REGISTERS, "epilogue_n": 64, "epilogue_buffers": 1,
               "swap_ab": False, "stream_k": False, "split_k": 1, "reduction": "cluster"},
    ),
    Row(
        "E6",
        "residual in a ring",
        "The next chunk lands while one is added; a single one is loaded behind the other.",
        on=[{"residual_buffers": 2}, {"residual_buffers": 4}],
        off={"residual_buffers": 1},
        problems=["residual", "residual_prefill"],
        given={**_PINGPONG, "tile_n": 128, "stages": 4, **_REGISTERS, "epilogue_n": 64, "epilogue_buffers": 1,
               "swap_ab": False, "stream_k": False, "split_k": 1, "reduction": "cluster"},
    ),
    Row(
        "cache hints",
        "weights leave L2 first",
        "What is read once does not displace what is read again.",
        on=[{"evict_first": "b"}],
        off={"evict_first": ""},
        problems=["decode_16", "decode_64"],
    ),
    Row(
        "cache hints",
        "bytes that a load brings into L2",
        "Fewer, larger requests to device memory; where rows are short more than is needed.",
        on=[{"l2_promotion": 256}, {"l2_promotion": 128}],
        off={"l2_promotion": 0},
        problems=["decode_16", "square"],
    ),
    Row(
        "split-K",
        "several CTAs share the K of a tile",
        "Fills the device where there are few tiles; parts have to be added up.",
        on=[
            {"split_k": 4, "reduction": "cluster"},
            {"split_k": 4, "reduction": "slots"},
            {"split_k": 4, "reduction": "atomic"},
        ],
        off={"split_k": 1, "reduction": "cluster"},
        problems=["one_tile", "decode_16"],
        given={**_SPLITTABLE, **_ONE_TILE, "stream_k": False},
    ),
    Row(
        "split-K",
        "all that share a tile add up",
        "Each part's CTA adds its share of the tile when all are there; the last to arrive would add all alone.",
        on=[{"reduction": "shares"}],
        off={"reduction": "slots"},
        problems=["one_tile"],
        given={**_COOPERATIVE, "tile_n": 128, "stages": 5, "split_k": 32, **_ONE_TILE, **_REGISTERS,
               **_NARROW_CHUNKS},
    ),
    Row(
        "split-K",
        "parts are exchanged in the operand ring",
        "Leaves memory for more stages; the CTAs have to meet before they send.",
        on=[{"exchange_in_ring": True}, {"exchange_in_ring": True, "stages": 6}],
        off={"exchange_in_ring": False},
        problems=["few_tiles"],
        given={**_COOPERATIVE, "tile_n": 144, "stages": 5, "split_k": 3, "reduction": "cluster", "swap_ab": False,
               **_ONE_TILE, **_REGISTERS, **_NARROW_CHUNKS},
    ),
    Row(
        "split-K",
        "CTAs that share K take its k-blocks in turn",
        "What they read at a time lies side by side in memory; otherwise each reads a stretch of its own.",
        on=[{"interleave_k": True}],
        off={"interleave_k": False},
        problems=["one_tile", "decode_16"],
        given={**_SPLITTABLE, "split_k": 4, "reduction": "cluster", **_ONE_TILE, "stream_k": False},
    ),
    Row(
        "split-K",
        "neighbours take the same part of different tiles",
        "L2 answers their loads of a line together; the parts of one tile have no line in common.",
        on=[{"parts_apart": True}],
        off={"parts_apart": False},
        problems=["one_tile"],
        given={**_SPLITTABLE, "split_k": 8, "reduction": "atomic", **_ONE_TILE, "stream_k": False},
    ),
    Row(
        "grid",
        "CTAs of a GPC work on distant tiles",
        "Tiles past the last full wave keep all GPCs busy; but SMs of a GPC share fewer lines.",
        on=[{"hands": 2}, {"hands": 8}],
        off={"hands": 1},
        problems=["decode_wide", "flat"],
        given={"persistent": True, "ctas": 0, **_NO_CLUSTER, "stream_k": False, "split_k": 1,
               "reduction": "cluster", "held_blocks": 0},
    ),
    Row(
        "short K",
        "the column operand stays in shared memory",
        "Half of what an SM takes in of a short K, and of the energy that takes; leaves fewer stages.",
        on=[{"held_blocks": 8}],
        off={"held_blocks": 0},
        problems=["short_k"],
        given={**_PINGPONG, "tile_n": 128, "stages": 4, "persistent": True, "ctas": 0, "raster": "m", "swizzle": 32,
               "k_zigzag": False, **_NO_CLUSTER, **_REGISTERS, "store": "tma", "epilogue_n": 32,
               "epilogue_buffers": 2, "stream_k": False, "split_k": 1, "reduction": "cluster"},
    ),
    Row(
        "start",
        "mbarriers initialised in straight code",
        "One thread at constant addresses; otherwise the compiler makes a loop over the lanes that have one.",
        on=[{"straight_start": True}],
        off={"straight_start": False},
        problems=["thousand", "decode_16"],
    ),
    Row(
        "start",
        "the first stages are asked for before all else",
        "Right after the mbarriers they arrive at; otherwise after all mbarriers, the registers and the roles.",
        on=[{"early_fill": True}],
        off={"early_fill": False},
        problems=["thousand", "decode_16"],
        given={"straight_start": True, "dependent_launch": "", **_NO_CLUSTER},
    ),
    Row(
        "start",
        "CTAs of a cluster fill their first stages alone",
        "Asked for before the CTAs have met; each of them loads what they would share.",
        on=[{"alone_stages": 1}, {"alone_stages": 2}, {"alone_stages": 4}],
        off={"alone_stages": 0},
        problems=["one_tile", "thousand"],
        given={"straight_start": True, "early_fill": False, "dependent_launch": ""},
    ),
    Row(
        "clip",
        "rows outside the matrix are not loaded",
        "TMA would fill them with zeros in shared memory, before what comes next.",
        on=[{"clip_boxes": True}],
        off={"clip_boxes": False},
        problems=["decode_16"],
        given={**_SPLITTABLE, "swap_ab": False, "split_k": 1, "reduction": "cluster", "stream_k": False,
               **_NO_CLUSTER, "epilogue_n": 64, "epilogue_buffers": 1},
    ),
    Row(
        "stream-K",
        "the last wave cut into equal shares",
        "No SM idles in the last wave; cut tiles are added up in device memory.",
        on=[{"stream_k": True, "reduction": "slots"}],
        off={"stream_k": False, "reduction": "cluster"},
        problems=["wave_and_a_bit", "small_square"],
        given={**_COOPERATIVE, "tile_n": 256, "stages": 4, "split_k": 1, "persistent": True, "ctas": 0,
               "epilogue_n": 64, "epilogue_buffers": 1, **_REGISTERS, **_NO_CLUSTER},
    ),
    Row(
        "swap-AB",
        "the transpose computed",
        "The 64 rows of a wgmma run along the weights, and its columns fit a small m.",
        on=[{"swap_ab": True, "tile_m": 64, "tile_n": 16}],
        off={"swap_ab": False, "tile_m": 64, "tile_n": 64},
        problems=["decode_16"],
        given={"arrangement": "coop", "consumers": 1, "tile_k": 128, "stages": 4, "split_k": 1, "reduction": "cluster",
               "epilogue_n": 16, "epilogue_buffers": 1, "producer_regs": 0, "consumer_regs": 0, **_NO_CLUSTER},
    ),
    Row(
        "swap-AB",
        "the transpose computed",
        "Which operand comes as rows; the store transposes.",
        on=[{"swap_ab": True}],
        off={"swap_ab": False},
        problems=["decode_64", "square"],
        given={**_NO_CLUSTER},
    ),
    Row(
        "dependent launch",
        "starts before the kernel ahead has finished",
        "Hides the start of the kernel, and with weights the first loads.",
        on=[{"dependent_launch": "wait"}, {"dependent_launch": "weights"}],
        off={"dependent_launch": ""},
        problems=["decode_overlap"],
    ),
)  # fmt: skip
"""Every row that is a choice of the schedule. Those without a number of the road map are what it does not ask for."""


AUDITED = 96
"""Kernels drawn from the whole space for the numbers of the invariants."""


def audit_sample(device: Device, count: int = AUDITED, seed: int = 0) -> list[tuple[Problem, Schedule]]:
    """Random schedules of the whole space, all kinds of problem in turn."""
    rng = random.Random(seed)
    kinds = itertools.product(("bf16", "fp16"), LAYOUTS, ("none", "bias+gelu+residual", "bias_m+silu"), OVERLAPS)
    problems = [
        Problem(4096, 4096, 4096, dtype, layout, epilogue=epilogue, overlap=overlap)
        for dtype, layout, epilogue, overlap in kinds
    ]
    rng.shuffle(problems)
    return [(problem, sample(problem, device, rng)) for problem in itertools.islice(itertools.cycle(problems), count)]


def check_rows(ids: Sequence[str]) -> None:
    """Check that there is a row of each id.

    Raises:
        BadInput: no row has one of them.
    """
    known = list(dict.fromkeys(row.id for row in ROWS))
    for unknown in (word for word in ids if word not in known):
        raise BadInput(f"row is {shown(unknown)}: valid are {', '.join(known)}")


def plan(table: Table, device: Device, ids: Sequence[str] = ()) -> list[Pair | Impossible]:
    """The pairs of the rows called `ids` (all without any), made of the table's schedules for the problems.

    Raises:
        BadInput: no row has one of the ids.
    """
    check_rows(ids)
    return [
        _pair(row, name, on, table, device)
        for row in ROWS
        if not ids or row.id in ids
        for name in row.problems
        for on in row.on
    ]


def _pair(row: Row, name: str, on: Changes, table: Table, device: Device) -> Pair | Impossible:
    problem = PROBLEMS[name]
    choice = best_schedule(problem, table, device)
    sides = []
    for side, changes in (("on", on), ("off", row.off)):
        wish = {**row.given, **changes}
        found = _nearest_with(choice.schedule, wish, problem, device)
        if found is None:
            broken = violations(problem, replace(choice.schedule, **wish), device)
            return Impossible(row, on, name, f"{side}: {'; '.join(broken)}")
        sides.append(found)
    return Pair(row, on, name, problem, choice.provenance, *sides)


def _nearest_with(base: Schedule, wish: Changes, problem: Problem, device: Device) -> Schedule | None:
    """`base` with the fields of `wish`, the others as they are or as near as the rules allow; None when they do not
    allow the wish."""
    wanted = replace(base, **wish)
    if not violations(problem, wanted, device):
        return wanted
    found = nearest(wanted.to_json(), problem, device)
    return found if all(getattr(found, name) == value for name, value in wish.items()) else None
