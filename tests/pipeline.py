"""A model of the kernel's pipeline: producers, loaders of a residual, consumers, rings, mbarriers, named barriers,
clusters, stores.

Every actor is a straight list of operations, as the generated kernel would issue them. What the hardware does by
itself (a TMA box lands, a group of wgmmas retires, a store has read its chunk, an arrival reaches a peer) are events
that happen at any later moment. `random_walk` lets one event after the other happen in an order drawn from a seed,
`explore` visits every reachable state. Both raise `Hazard` for whatever would be a hang or a wrong result on the GPU.

Warps of a warpgroup are one actor: what they owe each other inside a warpgroup, the model does not see.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tileseek.space import COOPERATIVE, PINGPONG, Schedule
from tileseek.space.resources import empty_arrivals


class Hazard(AssertionError):
    """The pipeline can hang or compute from wrong data."""


@dataclass(frozen=True)
class Pipeline:
    """One kernel launch as its CTAs of one cluster see it. `bug` names a mistake to plant, see `BUGS`."""

    arrangement: str = COOPERATIVE
    consumers: int = 1
    stages: int = 2
    in_flight: int = 0
    k_blocks: int | tuple[int, ...] = 2
    """Of every tile, or of each: parts of tiles that share K differ."""
    tiles: int = 1
    cluster_m: int = 1
    cluster_n: int = 1
    kind: str = "slice"
    """Of multicast: who loads an operand tile that CTAs share."""
    pieces: int = 0
    """Pieces in which a consumer stores its part of a tile by TMA; 0 for direct stores."""
    chunks: int = 1
    """Chunks of shared memory that the pieces go through."""
    residuals: int = 0
    """Chunks of a residual that a loader brings ahead of each consumer."""
    bug: str = ""
    columns: tuple[int, ...] = ()
    """The column of every tile, where operand B stays in memory of its own from tile to tile of a column; one CTA."""
    alone: int = 0
    """First stages that every CTA of a cluster fills for itself before it has met the others."""
    lag: int | None = None
    """Threads copy, and hand a stage over when so many later ones are under way; None: TMA fills the stages."""

    @property
    def ctas(self) -> range:
        return range(self.cluster_m * self.cluster_n)

    def blocks(self, tile: int) -> int:
        """The k-blocks of a tile."""
        return self.k_blocks[tile] if isinstance(self.k_blocks, tuple) else self.k_blocks

    def first_block(self, tile: int) -> int:
        """The number of a tile's first k-block, counted through all tiles."""
        return sum(self.blocks(before) for before in range(tile))

    def tiles_of(self, me: int) -> range:
        """The tiles of a consumer: every other one in ping-pong."""
        return range(me, self.tiles, 2) if self.arrangement == PINGPONG else range(self.tiles)

    def arrivals(self, cta: int, stage: int) -> int:
        """Arrivals that complete the empty barrier of a stage of a CTA, as the product computes them."""
        schedule = Schedule(
            self.arrangement,
            self.consumers,
            tile_m=64 * (1 if self.arrangement == PINGPONG else self.consumers),
            tile_n=128,
            tile_k=64,
            stages=self.stages,
            cluster_m=self.cluster_m,
            cluster_n=self.cluster_n,
            multicast_kind=self.kind,
        )
        extra = {
            "one arrival too few": -1,
            "one arrival too many": 1,
            "both consumers of ping-pong counted": self.consumers - 1,
        }.get(self.bug, 0)
        return empty_arrivals(schedule, cta % self.cluster_m, cta // self.cluster_m, stage) + extra

    def row(self, cta: int) -> list[int]:
        """CTAs that share operand A with `cta`: rank = row + column * cluster_m."""
        return [cta % self.cluster_m + column * self.cluster_m for column in range(self.cluster_n)]

    def column(self, cta: int) -> list[int]:
        """CTAs that share operand B with `cta`."""
        return [row + cta // self.cluster_m * self.cluster_m for row in range(self.cluster_m)]

    def turn(self, stage: int) -> int:
        """By which it is decided who of those that share it loads a stage for all."""
        return stage if self.kind == "rotate" else 0

    def loaders(self, cta: int, stage: int) -> list[int]:
        """CTAs whose loads reach a stage of `cta`, itself included: those that a consumer hands it back to."""
        if self.kind == "slice":
            return sorted({*self.row(cta), *self.column(cta)})
        turn = self.turn(stage)
        return sorted({cta, self.row(cta)[turn % self.cluster_n], self.column(cta)[turn % self.cluster_m]})

    @property
    def boxes(self) -> int:
        """TMA boxes that fill a stage of one CTA: a slice of A from each CTA of its row, of B from its column, or both
        as a whole."""
        return self.cluster_m + self.cluster_n if self.kind == "slice" else 2

    def loads(self, cta: int, stage: int) -> Iterator[tuple[int, int]]:
        """The (target, box) of everything that one fill of a stage by `cta` sends."""
        column, row = cta // self.cluster_m, cta % self.cluster_m
        if self.kind == "slice":
            yield from ((target, column) for target in self.row(cta))
            yield from ((target, self.cluster_n + row) for target in self.column(cta))
            return
        turn = self.turn(stage)
        if column == turn % self.cluster_n:
            yield from ((target, 0) for target in self.row(cta))
        if row == turn % self.cluster_m:
            yield from ((target, 1) for target in self.column(cta))


BUGS = (
    "release before the wait",
    "current stage released in flight",
    "stage reset for every tile",
    "stage from an equal K of every tile",
    "phase never flips",
    "barriers initialised for every tile",
    "barriers not awaited",
    "one arrival too few",
    "one arrival too many",
    "producer waits for the wrong parity",
    "bytes of one operand expected",
    "loads issued by two threads",
    "producer walks one tile too far",
    "both consumers of ping-pong counted",
    "no skip over the other's k-blocks",
    "no order of main loops",
    "no first turn",
    "epilogue synchronises all consumers",
    "no wait before the epilogue",
    "last stage not released",
    "peers not told",
    "no cluster barrier before the first load",
    "stages shared before the cluster has met",
    "cluster left early",
    "cluster left at a barrier",
    "CTA at the edge skips its tile",
    "chunk written without a wait",
    "wait for one store too few",
    "left with stores in flight",
    "residual not handed back",
    "residual handed back before it is read",
)

Operation = tuple[str, *tuple[int, ...]]

TURN, EPILOGUE, READY = 0, 2, 3
"""Named barriers of a CTA: two turns of the main loop, all consumers in the epilogue, mbarriers ready."""


class _Ring:
    """A place in a ring and the parity of its round: the counters of the generated code."""

    def __init__(self, size: int, flips: bool = True) -> None:
        self.size = size
        self.flips = flips
        self.stage = self.parity = 0

    def advance(self, count: int = 1) -> None:
        for _ in range(count):
            self.stage += 1
            if self.stage == self.size:
                self.stage = 0
                self.parity ^= self.flips


def _ring(p: Pipeline) -> _Ring:
    return _Ring(p.stages, p.bug != "phase never flips")


def _last_tile_skipped(p: Pipeline, cta: int) -> int:
    """Tiles that a CTA leaves out at the end because they lie outside the output."""
    return int(p.bug == "CTA at the edge skips its tile" and cta == p.ctas[-1] and cta > 0)


def producer(p: Pipeline, cta: int) -> Iterator[Operation]:
    """The producer thread of a CTA."""
    yield ("init", cta)
    ring = _ring(p)
    entering = list(_enter(p, cta, waits=False))
    yield from entering[:1]
    alone = min(p.alone, p.blocks(0))
    for block in range(alone):
        shared = p.bug == "stages shared before the cluster has met"
        yield ("fill" if shared else "fill alone", ring.stage, block)
        ring.advance()
    yield from entering[1:]
    under_way: list[Operation] = []
    walked = p.tiles - _last_tile_skipped(p, cta) + (p.bug == "producer walks one tile too far")
    for tile in range(walked):
        if p.bug == "barriers initialised for every tile" and tile:
            yield ("init", cta)
        for k in range(0 if tile else alone, p.blocks(min(tile, p.tiles - 1))):
            parity = ring.parity if p.bug == "producer waits for the wrong parity" else ring.parity ^ 1
            yield ("wait empty", cta, ring.stage, parity)
            if p.columns:
                fresh = tile == 0 or p.columns[tile] != p.columns[tile - 1]
                yield ("fill row", ring.stage, p.first_block(tile) + k, k, p.columns[tile] if fresh else -1)
            elif p.lag is None:
                yield ("fill", ring.stage, p.first_block(tile) + k)  # expect_tx and loads, which land any time later
            else:
                yield ("copy", ring.stage)
                under_way.append(("hand over", ring.stage, p.first_block(tile) + k))
                if len(under_way) > p.lag:
                    yield under_way.pop(0)
            ring.advance()
    yield from under_way
    if len(p.ctas) > 1 and p.bug not in ("cluster left early", "cluster left at a barrier"):
        for _ in range(p.stages):  # stays until every peer's arrival has come
            yield ("wait empty", cta, ring.stage, ring.parity ^ 1)
            ring.advance()
    yield from _leave(p)


def loader(p: Pipeline, cta: int, me: int) -> Iterator[Operation]:
    """The warp that brings the residual of a consumer."""
    yield from _enter(p, cta)
    ring = _Ring(p.residuals)
    for tile in p.tiles_of(me):
        for piece in range(p.pieces):
            yield ("wait free", cta, me, ring.stage, ring.parity ^ 1)
            yield ("fetch", me, ring.stage, tile * p.pieces + piece)
            ring.advance()
    yield from _leave(p)


def consumer(p: Pipeline, cta: int, me: int) -> Iterator[Operation]:
    """A consumer warpgroup. The k-blocks it must find in its stages are numbered through all tiles."""
    pingpong = p.arrangement == PINGPONG
    ordered = pingpong and p.bug != "no order of main loops"
    skips = p.bug != "no skip over the other's k-blocks"
    yield from _enter(p, cta)
    ring, residual = _ring(p), _Ring(max(1, p.residuals))
    if ordered and me == 1 and p.bug != "no first turn":
        yield ("arrive", cta, TURN + 0)
    if pingpong and me == 1 and skips:
        ring.advance(p.blocks(0))
    tiles = p.tiles_of(me)
    for tile in tiles[: len(tiles) - _last_tile_skipped(p, cta)]:
        if p.bug == "stage reset for every tile":
            ring.stage = 0
        if p.bug == "stage from an equal K of every tile":
            ring = _ring(p)
            ring.advance(tile * p.blocks(0))
        if ordered:
            yield ("arrive", cta, TURN + me)
            yield ("pass", cta, TURN + me)
        last = ring.stage
        for k in range(p.blocks(tile)):
            yield ("wait full", cta, ring.stage, ring.parity)
            held = (k, p.columns[tile]) if p.columns else ()
            yield ("mma", ring.stage, p.first_block(tile) + k, *held)
            if p.bug == "release before the wait":
                yield _release(p, cta, ring.stage)
                yield ("drain", p.in_flight)
            else:
                yield ("drain", p.in_flight)
                if p.in_flight == 0 or p.bug == "current stage released in flight":
                    yield _release(p, cta, ring.stage)
                elif k > 0:
                    yield _release(p, cta, last)
            last = ring.stage
            ring.advance()
        if ordered:
            yield ("arrive", cta, TURN + (me ^ 1))
        if p.bug != "no wait before the epilogue":
            yield ("drain", 0)
        released = ("last stage not released", "release before the wait", "current stage released in flight")
        if p.in_flight and p.bug not in released:
            yield _release(p, cta, last)
        if pingpong and skips:
            ring.advance(p.blocks(tile))
        yield from _epilogue(p, cta, me, tile, residual)
    if p.pieces and p.bug != "left with stores in flight":
        yield ("stores", 0)
    yield from _leave(p)


def _epilogue(p: Pipeline, cta: int, me: int, tile: int, residual: _Ring) -> Iterator[Operation]:
    """Read the accumulators; piece by piece wait for the chunk, add the residual, stage, store."""
    yield ("epilogue",)
    if p.bug == "epilogue synchronises all consumers":
        yield ("arrive", cta, EPILOGUE)
        yield ("pass", cta, EPILOGUE)
    for piece in range(p.pieces):
        left = p.chunks if p.bug == "wait for one store too few" else p.chunks - 1
        if p.bug != "chunk written without a wait":
            if piece == 0:
                yield ("stores", 0)
            elif piece >= p.chunks:
                yield ("stores", left)
        if p.residuals:
            early = p.bug == "residual handed back before it is read"
            hand_back = ("hand back", cta, me, residual.stage)
            yield ("wait landed", cta, me, residual.stage, residual.parity)
            if early:
                yield hand_back
            yield ("read", me, residual.stage, tile * p.pieces + piece)
            if not early and p.bug != "residual not handed back":
                yield hand_back
            residual.advance()
        yield ("stage", piece % p.chunks)
        yield ("store", piece % p.chunks)


def _release(p: Pipeline, cta: int, stage: int) -> Operation:
    return ("release", stage, *([cta] if p.bug == "peers not told" else p.loaders(cta, stage)))


def _enter(p: Pipeline, cta: int, waits: bool = True) -> Iterator[Operation]:
    """Where all but the producer wait for the mbarriers; in a cluster it waits as well, for those of its peers."""
    if p.bug == "barriers not awaited":
        return
    if len(p.ctas) > 1 and p.bug != "no cluster barrier before the first load":
        yield ("cluster arrive",)
        yield ("cluster pass",)
    else:
        yield ("arrive", cta, READY)
        if waits:
            yield ("pass", cta, READY)


def _leave(p: Pipeline) -> Iterator[Operation]:
    """A barrier of the cluster orders nothing that is still on its way to a peer."""
    if p.bug == "cluster left at a barrier":
        yield ("cluster arrive",)
        yield ("cluster pass",)


@dataclass(frozen=True)
class _Actor:
    cta: int
    program: tuple[Operation, ...]


Event = tuple[str, *tuple[int, ...]]

Mbarrier = tuple[int, int, int]
"""Completed phases, pending arrivals, bytes that are expected and have not landed (counted in boxes)."""

_UNMADE = (-1, 0, 0)
"""An mbarrier before its initialisation."""


_PRIVATE = ("drain", "stores", "pass", "cluster pass", "epilogue")
"""Operations that, once possible, stay so and change nothing but the actor's own place."""


class Machine:
    """The state of one cluster. Events are `("step", actor)`, `("retire", actor)`, `("stored", actor)`,
    `("land", cta, stage, k-block, box, copy)`, `("land held", cta, stage, k, column)`, `("fetched", cta, consumer,
    chunk, piece)` and `("told", cta, stage, actor)`."""

    def __init__(self, p: Pipeline) -> None:
        self.p = p
        self.actors: list[_Actor] = []
        for cta in p.ctas:
            self.actors.append(_Actor(cta, tuple(producer(p, cta))))
            self.actors += [_Actor(cta, tuple(consumer(p, cta, me))) for me in range(p.consumers)]
            if p.residuals:
                self.actors += [_Actor(cta, tuple(loader(p, cta, me))) for me in range(p.consumers)]
        slots = len(p.ctas) * p.stages
        chunks = len(p.ctas) * p.consumers * p.residuals
        self.at = [0] * len(self.actors)
        self.marks = [0] * len(self.actors)
        """The round of a named barrier that the actor arrived in."""
        self.reads: list[tuple[tuple[int, int], ...]] = [()] * len(self.actors)
        """Stages that wgmmas in flight read, and k-blocks of a held operand or -1; one group each, oldest first."""
        self.stores: list[tuple[int, ...]] = [()] * len(self.actors)
        """Chunks that stores in flight read, oldest first."""
        self.full: list[Mbarrier] = [_UNMADE] * slots
        self.empty: list[Mbarrier] = [_UNMADE] * slots
        self.landed: list[Mbarrier] = [_UNMADE] * chunks
        self.free: list[Mbarrier] = [_UNMADE] * chunks
        self.contents: list[tuple[int, ...]] = [(-1,) * p.boxes] * slots
        self.held = [-1] * (p.blocks(0) if p.columns else 0)
        """The column that each k-block of a held operand is of."""
        self.residual: list[int] = [-1] * chunks
        self.flying: frozenset[Event] = frozenset()
        """Boxes and arrivals on their way, as the events of their landing."""
        # A named barrier is (completed rounds, arrivals of warpgroups in this one); the last is the cluster's.
        self.named = [(0, 0)] * (4 * len(p.ctas) + 1)

    def copy(self) -> Machine:
        twin = object.__new__(Machine)
        for name, value in vars(self).items():
            setattr(twin, name, value[:] if isinstance(value, list) and name != "actors" else value)
        return twin

    def key(self) -> tuple[object, ...]:
        """Equal for states that have the same futures."""
        rings = (self.full, self.empty, self.landed, self.free, self.contents, self.held, self.residual)
        return (*map(tuple, (self.at, self.marks, self.reads, self.stores, *rings, self.named)), self.flying)

    @property
    def finished(self) -> bool:
        return all(self._done(i) for i in range(len(self.actors)))

    def events(self) -> list[Event]:
        """Everything that can happen next."""
        events: list[Event] = [("step", i) for i in range(len(self.actors)) if self._can_step(i)]
        events += [("retire", i) for i, reads in enumerate(self.reads) if reads]
        events += [("stored", i) for i, chunks in enumerate(self.stores) if chunks]
        return events + sorted(self.flying)

    def branches(self) -> list[Event]:
        """The events whose order matters: a step that nobody else sees, and that nothing disables, goes first."""
        events = self.events()
        for kind, actor, *_ in events:
            if kind == "step" and self.actors[actor].program[self.at[actor]][0] in _PRIVATE:
                return [(kind, actor)]
        return events

    def apply(self, event: Event) -> None:
        """Let one event happen.

        Raises:
            Hazard: it is one that must not.
        """
        kind, *operands = event
        if kind == "retire":
            self.reads[operands[0]] = self.reads[operands[0]][1:]
        elif kind == "stored":
            self.stores[operands[0]] = self.stores[operands[0]][1:]
            self._check_alive(self.actors[operands[0]].cta, "a store's reading")
        elif kind == "step":
            self._step(operands[0])
        else:
            self.flying -= {event}
            self._check_alive(operands[0], "an arrival" if kind == "told" else "a TMA box")
            if kind == "told":
                target, stage, _ = operands
                self._arrive(self.empty, self._slot(target, stage), self.p.arrivals(target, stage), arrivals=1)
            elif kind == "land":
                self._land(*operands)
            elif kind == "land held":
                self._land_held(*operands)
            else:
                cta, me, slot, piece = operands
                self.residual[self._chunk(cta, me, slot)] = piece
                self._arrive(self.landed, self._chunk(cta, me, slot), 1, boxes=-1)

    def _slot(self, cta: int, stage: int) -> int:
        return cta * self.p.stages + stage

    def _chunk(self, cta: int, me: int, slot: int) -> int:
        return (cta * self.p.consumers + me) * self.p.residuals + slot

    def _done(self, actor: int) -> bool:
        return self.at[actor] == len(self.actors[actor].program)

    def _can_step(self, actor: int) -> bool:
        if self._done(actor):
            return False
        name, *operands = self.actors[actor].program[self.at[actor]]
        if name in ("wait full", "wait empty"):
            cta, stage, parity = operands
            barriers = self.full if name == "wait full" else self.empty
            return self._passed(barriers[self._slot(cta, stage)], parity)
        if name in ("wait landed", "wait free"):
            cta, me, slot, parity = operands
            barriers = self.landed if name == "wait landed" else self.free
            return self._passed(barriers[self._chunk(cta, me, slot)], parity)
        if name == "drain":
            return len(self.reads[actor]) <= operands[0]
        if name == "stores":
            return len(self.stores[actor]) <= operands[0]
        if name == "pass":
            return self.named[4 * operands[0] + operands[1]][0] > self.marks[actor]
        if name == "cluster pass":
            return self.named[-1][0] > self.marks[actor]
        return True

    def _passed(self, barrier: Mbarrier, parity: int) -> bool:
        if barrier == _UNMADE:
            raise Hazard("a wait on an mbarrier that is not initialised")
        return barrier[0] % 2 != parity

    def _step(self, actor: int) -> None:
        cta = self.actors[actor].cta
        name, *operands = self.actors[actor].program[self.at[actor]]
        self.at[actor] += 1
        match name:
            case "init":
                self._init(cta)
            case "fill":
                self._fill(cta, *operands)
            case "fill alone":
                self._arrive(self.full, self._slot(cta, operands[0]), 1, arrivals=1, boxes=self.p.boxes)
                self.flying |= {("land", cta, *operands, box, 0) for box in range(self.p.boxes)}
            case "fill row":
                self._fill_row(cta, *operands)
            case "copy":
                self._overwrite(cta, operands[0])
                self.contents[self._slot(cta, operands[0])] = (-1,) * self.p.boxes
            case "hand over":
                stage, block = operands
                self.contents[self._slot(cta, stage)] = (block,) * self.p.boxes
                self._arrive(self.full, self._slot(cta, stage), 1, arrivals=1)
            case "fetch":
                me, slot, piece = operands
                self._arrive(self.landed, self._chunk(cta, me, slot), 1, arrivals=1, boxes=1)
                self.flying |= {("fetched", cta, me, slot, piece)}
            case "mma":
                stage, block, *held = operands
                found = self.contents[self._slot(cta, stage)][: 1 if held else None]
                if found != (block,) * len(found):
                    raise Hazard(f"wgmma reads k-blocks {found} in place of {block}")
                if held and self.held[held[0]] != held[1]:
                    raise Hazard(f"wgmma reads column {self.held[held[0]]} in place of {held[1]}")
                self.reads[actor] += ((stage, held[0] if held else -1),)
            case "release":
                stage, *targets = operands
                for target in targets:
                    if target == cta:
                        self._arrive(self.empty, self._slot(target, stage), self.p.arrivals(target, stage), arrivals=1)
                    else:
                        self.flying |= {("told", target, stage, actor)}
            case "epilogue" if self.reads[actor]:
                raise Hazard("the epilogue reads accumulators of wgmmas in flight")
            case "read":
                me, slot, piece = operands
                found_piece = self.residual[self._chunk(cta, me, slot)]
                if found_piece != piece:
                    raise Hazard(f"piece {found_piece} of the residual is read in place of {piece}")
            case "hand back":
                self._arrive(self.free, self._chunk(*operands), 1, arrivals=1)
            case "stage" if operands[0] in self.stores[actor]:
                raise Hazard(f"chunk {operands[0]} is overwritten while a store reads it")
            case "store":
                self.stores[actor] += (operands[0],)
            case "arrive":
                barrier = operands[1]
                ready = len([a for a in self.actors if a.cta == cta])
                count = {READY: ready, EPILOGUE: self.p.consumers}.get(barrier, 2)
                self._named_arrive(actor, 4 * operands[0] + barrier, count)
            case "cluster arrive":
                self._named_arrive(actor, len(self.named) - 1, len(self.actors))

    def _init(self, cta: int) -> None:
        for stage in range(self.p.stages):
            self.full[self._slot(cta, stage)] = (0, 1, 0)
            self.empty[self._slot(cta, stage)] = (0, self.p.arrivals(cta, stage), 0)
        for me in range(self.p.consumers):
            for slot in range(self.p.residuals):
                self.landed[self._chunk(cta, me, slot)] = self.free[self._chunk(cta, me, slot)] = (0, 1, 0)

    def _fill(self, cta: int, stage: int, block: int) -> None:
        expected = self.p.boxes - (self.p.bug == "bytes of one operand expected")
        self._arrive(self.full, self._slot(cta, stage), 1, arrivals=1, boxes=expected)
        for copy in range(1 + (self.p.bug == "loads issued by two threads")):
            self.flying |= {("land", target, stage, block, box, copy) for target, box in self.p.loads(cta, stage)}

    def _fill_row(self, cta: int, stage: int, block: int, k: int, column: int) -> None:
        """Of a held operand nothing is loaded again in the same column (-1)."""
        boxes = 1 if column < 0 else 2
        self._arrive(self.full, self._slot(cta, stage), 1, arrivals=1, boxes=boxes)
        self.flying |= {("land", cta, stage, block, 0, 0)}
        if column >= 0:
            self.flying |= {("land held", cta, stage, k, column)}

    def _land_held(self, cta: int, stage: int, k: int, column: int) -> None:
        for reads in self.reads:
            if any(k == read for _, read in reads):
                raise Hazard(f"k-block {k} of a held operand is overwritten while wgmmas read it")
        self.held[k] = column
        self._arrive(self.full, self._slot(cta, stage), 1, boxes=-1)

    def _land(self, cta: int, stage: int, block: int, box: int, copy: int) -> None:
        del copy
        self._overwrite(cta, stage)
        slot = self._slot(cta, stage)
        contents = self.contents[slot]
        self.contents[slot] = (*contents[:box], block, *contents[box + 1 :])
        self._arrive(self.full, slot, 1, boxes=-1)

    def _overwrite(self, cta: int, stage: int) -> None:
        for actor, reads in zip(self.actors, self.reads, strict=True):
            if actor.cta == cta and any(stage == read for read, _ in reads):
                raise Hazard(f"stage {stage} is overwritten while wgmmas read it")

    def _arrive(self, barriers: list[Mbarrier], slot: int, count: int, arrivals: int = 0, boxes: int = 0) -> None:
        """An arrival, or a change of the expected bytes, on an mbarrier of `count` arrivals a phase."""
        if barriers[slot] == _UNMADE:
            raise Hazard("an mbarrier is used that is not initialised")
        phase, pending, missing = barriers[slot]
        pending -= arrivals
        missing += boxes
        if pending < 0:
            raise Hazard("an mbarrier gets more arrivals than its phase has")
        if pending == 0 and missing == 0:
            phase, pending = phase + 1, count
        barriers[slot] = (phase, pending, missing)

    def _named_arrive(self, actor: int, barrier: int, count: int) -> None:
        rounds, arrived = self.named[barrier]
        self.marks[actor] = rounds
        self.named[barrier] = (rounds + 1, 0) if arrived + 1 == count else (rounds, arrived + 1)

    def _check_alive(self, cta: int, what: str) -> None:
        if all(self._done(i) for i, actor in enumerate(self.actors) if actor.cta == cta):
            raise Hazard(f"{what} reaches CTA {cta}, which has exited")


def random_walk(p: Pipeline, seed: int) -> int:
    """Run to the end in an order drawn from `seed`; the number of events.

    Actors and the hardware run at speeds that differ by orders of magnitude from seed to seed.
    """
    rng = random.Random(seed)
    machine = Machine(p)
    speeds: dict[tuple[object, ...], float] = {}
    count = 0
    while events := machine.events():
        weights = [speeds.setdefault(event[:2], rng.choice((0.01, 1.0, 100.0))) for event in events]
        machine.apply(rng.choices(events, weights)[0])
        count += 1
    _check_end(machine)
    return count


def explore(p: Pipeline, limit: int) -> int:
    """Visit every state that any order of events reaches, but for the order of private steps; their number, which must
    not exceed `limit`."""
    start = Machine(p)
    seen = {start.key()}
    frontier = [start]
    while frontier:
        machine = frontier.pop()
        events = machine.branches()
        if not events:
            _check_end(machine)
        for event in events:
            successor = machine.copy()
            successor.apply(event)
            if (key := successor.key()) not in seen:
                seen.add(key)
                frontier.append(successor)
        if len(seen) > limit:
            raise ValueError(f"{p} has more than {limit} states")
    return len(seen)


def hazards(p: Pipeline, seeds: Iterable[int]) -> Iterator[str]:
    """What random walks with `seeds` find wrong, one after the other."""
    for seed in seeds:
        try:
            random_walk(p, seed)
        except Hazard as hazard:
            yield str(hazard)


def _check_end(machine: Machine) -> None:
    if not machine.finished:
        stuck = [
            actor.program[at][0]
            for actor, at in zip(machine.actors, machine.at, strict=True)
            if at < len(actor.program)
        ]
        raise Hazard(f"deadlock: actors stay at {', '.join(stuck)}")
    if machine.flying or any(machine.reads):
        raise Hazard("the kernel ends with copies or wgmmas in flight")
