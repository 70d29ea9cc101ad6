"""A model of the kernel's pipeline: producers, consumers, the ring of stages, mbarriers, named barriers, clusters.

Every actor is a straight list of operations, as the generated kernel would issue them. What the hardware does by
itself (a TMA box lands, a group of wgmmas retires) are events that happen at any later moment. `random_walk` lets
one event after the other happen in an order drawn from a seed, `explore` visits every reachable state.
Both raise `Hazard` for whatever would be a hang or a wrong result on the GPU.
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
    k_blocks: int = 2
    tiles: int = 1
    cluster_m: int = 1
    cluster_n: int = 1
    bug: str = ""

    @property
    def ctas(self) -> range:
        return range(self.cluster_m * self.cluster_n)

    @property
    def arrivals(self) -> int:
        """Arrivals that complete an empty barrier, as the product computes them."""
        schedule = Schedule(
            self.arrangement,
            self.consumers,
            tile_m=64 * (1 if self.arrangement == PINGPONG else self.consumers),
            tile_n=128,
            tile_k=64,
            stages=self.stages,
            cluster_m=self.cluster_m,
            cluster_n=self.cluster_n,
        )
        extra = {"one arrival too few": -1, "one arrival too many": 1}.get(self.bug, 0)
        return empty_arrivals(schedule) + extra

    def row(self, cta: int) -> list[int]:
        """CTAs that share operand A with `cta`: rank = row + column * cluster_m."""
        return [cta % self.cluster_m + column * self.cluster_m for column in range(self.cluster_n)]

    def column(self, cta: int) -> list[int]:
        """CTAs that share operand B with `cta`."""
        return [row + cta // self.cluster_m * self.cluster_m for row in range(self.cluster_m)]

    def peers(self, cta: int) -> list[int]:
        """CTAs whose loads reach `cta`, itself included."""
        return sorted({*self.row(cta), *self.column(cta)})

    @property
    def slices(self) -> int:
        """TMA boxes that fill a stage of one CTA: a slice of A from each CTA of its row, of B from its column."""
        return self.cluster_m + self.cluster_n


BUGS = (
    "release before the wait",
    "stage reset for every tile",
    "phase never flips",
    "one arrival too few",
    "one arrival too many",
    "producer waits for the wrong parity",
    "no skip over the other's k-blocks",
    "no order of main loops",
    "no first turn",
    "no wait before the epilogue",
    "last stage not released",
    "peers not told",
    "cluster left early",
)

Operation = tuple[str, *tuple[int, ...]]


class _Ring:
    """A place in the ring and the parity of its round: the counters of the generated code."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.stages = pipeline.stages
        self.flips = pipeline.bug != "phase never flips"
        self.stage = self.parity = 0

    def advance(self, count: int = 1) -> None:
        for _ in range(count):
            self.stage += 1
            if self.stage == self.stages:
                self.stage = 0
                self.parity ^= self.flips


def producer(p: Pipeline, cta: int) -> Iterator[Operation]:
    """The producer thread of a CTA."""
    ring = _Ring(p)
    for block in range(p.tiles * p.k_blocks):
        parity = ring.parity if p.bug == "producer waits for the wrong parity" else ring.parity ^ 1
        yield ("wait empty", cta, ring.stage, parity)
        yield ("fill", ring.stage, block)  # expect_tx and both loads, which land at any later moment
        ring.advance()
    yield from _leave(p)


def consumer(p: Pipeline, cta: int, me: int) -> Iterator[Operation]:
    """A consumer warpgroup. The k-blocks it must find in its stages are numbered through all tiles."""
    pingpong = p.arrangement == PINGPONG
    ordered = pingpong and p.bug != "no order of main loops"
    skips = p.bug != "no skip over the other's k-blocks"
    ring = _Ring(p)
    if ordered and me == 1 and p.bug != "no first turn":
        yield ("arrive", cta, 0)
    if pingpong and me == 1 and skips:
        ring.advance(p.k_blocks)
    for tile in range(me if pingpong else 0, p.tiles, 2 if pingpong else 1):
        if p.bug == "stage reset for every tile":
            ring.stage = 0
        if ordered:
            yield ("arrive", cta, me)
            yield ("pass", cta, me)
        last = ring.stage
        for k in range(p.k_blocks):
            yield ("wait full", cta, ring.stage, ring.parity)
            yield ("mma", ring.stage, tile * p.k_blocks + k)
            if p.bug == "release before the wait":
                yield _release(p, cta, ring.stage)
                yield ("drain", p.in_flight)
            else:
                yield ("drain", p.in_flight)
                if p.in_flight == 0:
                    yield _release(p, cta, ring.stage)
                elif k > 0:
                    yield _release(p, cta, last)
            last = ring.stage
            ring.advance()
        if ordered:
            yield ("arrive", cta, me ^ 1)
        if p.bug != "no wait before the epilogue":
            yield ("drain", 0)
        if p.in_flight and p.bug not in ("last stage not released", "release before the wait"):
            yield _release(p, cta, last)
        if pingpong and skips:
            ring.advance(p.k_blocks)
        yield ("epilogue",)
    yield from _leave(p)


def _release(p: Pipeline, cta: int, stage: int) -> Operation:
    return ("release", stage, *([cta] if p.bug == "peers not told" else p.peers(cta)))


def _leave(p: Pipeline) -> Iterator[Operation]:
    if len(p.ctas) > 1 and p.bug != "cluster left early":
        yield ("cluster arrive",)
        yield ("cluster pass",)


@dataclass(frozen=True)
class _Actor:
    cta: int
    program: tuple[Operation, ...]


Event = tuple[str, *tuple[int, ...]]


class Machine:
    """The state of one cluster. Events are `("step", actor)`, `("retire", actor)` and
    `("land", cta, stage, k-block, slice)`."""

    def __init__(self, p: Pipeline) -> None:
        self.p = p
        self.actors: list[_Actor] = []
        for cta in p.ctas:
            self.actors.append(_Actor(cta, tuple(producer(p, cta))))
            self.actors += [_Actor(cta, tuple(consumer(p, cta, me))) for me in range(p.consumers)]
        slots = len(p.ctas) * p.stages
        self.at = [0] * len(self.actors)
        self.marks = [0] * len(self.actors)
        """The round of a named barrier that the actor arrived in."""
        self.reads: list[tuple[int, ...]] = [()] * len(self.actors)
        """Stages that wgmmas in flight read, one group each, oldest first."""
        # An mbarrier is (completed phases, pending arrivals, bytes expected and not landed, in boxes).
        self.full = [(0, 1, 0)] * slots
        self.empty = [(0, p.arrivals, 0)] * slots
        self.contents: list[tuple[int, ...]] = [(-1,) * p.slices] * slots
        self.flying: frozenset[tuple[int, ...]] = frozenset()
        # A named barrier is (completed rounds, arrivals of warpgroups in this one); the last is the cluster's.
        self.named = [(0, 0)] * (2 * len(p.ctas) + 1)

    def copy(self) -> Machine:
        twin = object.__new__(Machine)
        for name, value in vars(self).items():
            setattr(twin, name, value[:] if isinstance(value, list) and name != "actors" else value)
        return twin

    def key(self) -> tuple[object, ...]:
        """Equal for states that have the same futures."""
        lists = (self.at, self.marks, self.reads, self.full, self.empty, self.contents, self.named)
        return (*map(tuple, lists), self.flying)

    @property
    def finished(self) -> bool:
        return all(self._done(i) for i in range(len(self.actors)))

    def events(self) -> list[Event]:
        """Everything that can happen next."""
        events: list[Event] = [("step", i) for i in range(len(self.actors)) if self._can_step(i)]
        events += [("retire", i) for i, reads in enumerate(self.reads) if reads]
        events += [("land", *box) for box in sorted(self.flying)]
        return events

    def apply(self, event: Event) -> None:
        """Let one event happen.

        Raises:
            Hazard: it is one that must not.
        """
        kind, *operands = event
        if kind == "retire":
            self.reads[operands[0]] = self.reads[operands[0]][1:]
        elif kind == "land":
            self._land(*operands)
        else:
            self._step(operands[0])

    def _slot(self, cta: int, stage: int) -> int:
        return cta * self.p.stages + stage

    def _done(self, actor: int) -> bool:
        return self.at[actor] == len(self.actors[actor].program)

    def _can_step(self, actor: int) -> bool:
        if self._done(actor):
            return False
        name, *operands = self.actors[actor].program[self.at[actor]]
        if name in ("wait full", "wait empty"):
            cta, stage, parity = operands
            barriers = self.full if name == "wait full" else self.empty
            return barriers[self._slot(cta, stage)][0] % 2 != parity
        if name == "drain":
            return len(self.reads[actor]) <= operands[0]
        if name == "pass":
            return self.named[2 * operands[0] + operands[1]][0] > self.marks[actor]
        if name == "cluster pass":
            return self.named[-1][0] > self.marks[actor]
        return True

    def _step(self, actor: int) -> None:
        cta = self.actors[actor].cta
        name, *operands = self.actors[actor].program[self.at[actor]]
        self.at[actor] += 1
        if name == "fill":
            stage, block = operands
            self._arrive(self.full, self._slot(cta, stage), expected=self.p.slices, arrivals=1)
            a_slice, b_slice = cta // self.p.cluster_m, self.p.cluster_n + cta % self.p.cluster_m
            self.flying |= {(target, stage, block, a_slice) for target in self.p.row(cta)}
            self.flying |= {(target, stage, block, b_slice) for target in self.p.column(cta)}
        elif name == "mma":
            stage, block = operands
            found = self.contents[self._slot(cta, stage)]
            if found != (block,) * self.p.slices:
                raise Hazard(f"wgmma reads k-blocks {found} in place of {block}")
            self.reads[actor] += (stage,)
        elif name == "release":
            stage, *targets = operands
            for target in targets:
                self._check_alive(target, "an arrival")
                self._arrive(self.empty, self._slot(target, stage), arrivals=self.p.arrivals)
        elif name == "epilogue" and self.reads[actor]:
            raise Hazard("the epilogue reads accumulators of wgmmas in flight")
        elif name == "arrive":
            self._named_arrive(actor, 2 * operands[0] + operands[1], 2)
        elif name == "cluster arrive":
            self._named_arrive(actor, len(self.named) - 1, len(self.actors))

    def _land(self, cta: int, stage: int, block: int, piece: int) -> None:
        self.flying -= {(cta, stage, block, piece)}
        self._check_alive(cta, "a TMA box")
        for actor, reads in zip(self.actors, self.reads, strict=True):
            if actor.cta == cta and stage in reads:
                raise Hazard(f"stage {stage} is overwritten while wgmmas read it")
        slot = self._slot(cta, stage)
        contents = self.contents[slot]
        self.contents[slot] = (*contents[:piece], block, *contents[piece + 1 :])
        self._arrive(self.full, slot, expected=-1)

    def _arrive(self, barriers: list[tuple[int, int, int]], slot: int, arrivals: int = 0, expected: int = 0) -> None:
        """One arrival on an mbarrier when `arrivals` (its count for a phase) is given, and a change of its bytes."""
        phase, pending, boxes = barriers[slot]
        pending -= bool(arrivals)
        boxes += expected
        if pending < 0:
            raise Hazard("an mbarrier gets more arrivals than its phase has")
        if pending == 0 and boxes == 0:
            count = 1 if barriers is self.full else self.p.arrivals
            phase, pending = phase + 1, count
        barriers[slot] = (phase, pending, boxes)

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
    """Visit every state that any order of events reaches; their number, which must not exceed `limit`."""
    start = Machine(p)
    seen = {start.key()}
    frontier = [start]
    while frontier:
        machine = frontier.pop()
        events = machine.events()
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


def hazards(p: Pipeline, seeds: Iterable[int]) -> list[str]:
    """What random walks with `seeds` find wrong."""
    found = []
    for seed in seeds:
        try:
            random_walk(p, seed)
        except Hazard as hazard:
            found.append(str(hazard))
    return found


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
