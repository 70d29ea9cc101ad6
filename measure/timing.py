"""Slots, rounds and spacers: how contenders run against each other on one stream."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from statistics import mean
from typing import Any, Protocol

from .clock import Clock
from .driver import Graph
from .energy import Counter, mean_power_w
from .lazy import torch
from .nvml import Reading
from .policy import BURST, Policy

MAX_CALLS = 8192
"""Calls of one graph at most."""

WATCH_S = 0.0005
"""Pause between looks at a running slot."""

LONG_SLOT_MS = 10.0
"""Slots of this length and more are watched one by one, so that each contender's power is its own."""

_ESTIMATE_US = 200.0
_BACKLOG_US = 200.0
"""GPU time that hides the host's enqueueing."""


_ENERGY_HEAT_S = 0.06
"""How long a contestant runs before its energy is counted: its own power state takes hold within 30 ms."""

_AHEAD = 3
"""Graphs queued ahead while energy is counted."""


class Meter(Counter, Protocol):
    """What NVML gives."""

    def read(self) -> Reading:
        """The state of the board at this moment."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One slot: microseconds of one call, effective clock, and the state of the board while it ran."""

    us: float
    mhz: float
    power_w: float
    temperature_c: int
    throttle: int
    """Bits of NVML's clock event reasons that were seen."""


@dataclass(slots=True)
class Slot:
    """A contender's graph of many calls, with what was measured of it: one sample a round, None where it sat out."""

    name: str
    graph: Graph
    calls: int
    expected_ms: float
    samples: list[Sample | None] = field(default_factory=list)
    energies: list[float] = field(default_factory=list)
    """Millijoules of a call, one for each pass."""

    @property
    def taken(self) -> list[Sample]:
        """The samples there are."""
        return [sample for sample in self.samples if sample is not None]

    def spent_ms(self) -> float:
        """GPU time of all samples."""
        return sum(sample.us for sample in self.taken) * self.calls / 1000


Enqueue = Callable[[int], None]
"""Puts one call on the stream, with the operand set of that number."""


class Stopwatch:
    """Times what is enqueued on one torch stream, which is the current one."""

    def __init__(self, stream: Any, clock: Clock, meter: Meter) -> None:
        self._stream = stream
        self._handle = int(stream.cuda_stream)
        self._clock = clock
        self._meter = meter

    def estimate_us(self, enqueue: Enqueue, sets: int) -> float:
        """A rough time of one call, of a few in a row without waiting for the host."""
        first = self._span(enqueue, sets, 1)
        calls = max(1, min(16, int(_ESTIMATE_US / first)))
        return self._span(enqueue, sets, calls) / calls

    def slot(self, name: str, enqueue: Enqueue, sets: int, us: float, slot_ms: float) -> Slot:
        """The graph of as many calls of `us` microseconds as last `slot_ms`, run once to warm up."""
        calls = max(1, min(MAX_CALLS, round(slot_ms * 1000 / us)))

        def calls_in_rotation() -> None:
            for call in range(calls):
                enqueue(call % sets)

        graph = Graph.capture(self._handle, calls_in_rotation)
        graph.launch(self._handle)
        self._stream.synchronize()
        return Slot(name, graph, calls, calls * us / 1000)

    def replay(self, slot: Slot) -> None:
        """Enqueue one slot, untimed."""
        slot.graph.launch(self._handle)

    def sustained_mhz(self, slot: Slot, heat_ms: float, measure_ms: float) -> float:
        """The effective clock of `slot` over `measure_ms`, after `heat_ms` of it."""
        first = self._event()
        self.replay(slot)
        last = self._event()
        self._stream.synchronize()
        one_ms = max(0.01, first.elapsed_time(last))
        self._clock.reset(1)
        for _ in range(max(1, round(heat_ms / one_ms))):
            self.replay(slot)
        self._clock.mark(0, end=False)
        for _ in range(max(1, round(measure_ms / one_ms))):
            self.replay(slot)
        self._clock.mark(0, end=True)
        self._stream.synchronize()
        return self._clock.mhz(1)[0]

    def race(
        self,
        slots: Sequence[Slot],
        spacer: Slot,
        policy: Policy,
        rounds: int,
        slot_ms: float,
        rng: random.Random,
        alive: Callable[[float], None],
        always: int = 0,
    ) -> None:
        """Give every slot one sample a round, in an order drawn anew each round.

        `alive` is called before every batch with the seconds it may take: ten times what is expected and some more.
        The first `always` slots never sit out.
        """
        one_by_one = policy.regime == BURST or slot_ms >= LONG_SLOT_MS
        for number in range(rounds):
            dealing = number % policy.dealings if policy.dealings else None
            order = [
                slot
                for index, slot in enumerate(slots)
                if index < always or len(slot.taken) < 3 or slot.spent_ms() < policy.max_ms
            ]
            rng.shuffle(order)
            for batch in [[slot] for slot in order] if one_by_one else [order]:
                alive(policy.timeout_s + sum(slot.expected_ms for slot in batch) / 100)
                for slot, sample in zip(batch, self._run(batch, spacer, policy, dealing), strict=True):
                    slot.samples.append(sample)
            for slot in slots:
                if not any(slot is other for other in order):
                    slot.samples.append(None)

    def count_energy(
        self, slots: Sequence[Slot], policy: Policy, rng: random.Random, alive: Callable[[float], None]
    ) -> None:
        """Let every slot run alone in every pass, and note the energy of one of its calls."""
        for _ in range(policy.energy_passes):
            order = list(slots)
            rng.shuffle(order)
            for slot in order:
                alive(policy.timeout_s + (policy.energy_ms + slot.expected_ms) / 100)
                slot.energies.append(self._millijoules(slot, policy.energy_ms / 1000))

    def _millijoules(self, slot: Slot, least_s: float) -> float:
        """Energy of a call: mean power while the slot runs without a pause, times the time of a call meanwhile."""
        queued: deque[Any] = deque()
        replays = 0

        def keep_busy() -> None:
            nonlocal replays
            while queued and queued[0].query():
                queued.popleft()
            while len(queued) < _AHEAD:
                self.replay(slot)
                queued.append(self._event())
                replays += 1
            time.sleep(WATCH_S)

        start = self._event()
        warm = time.monotonic() + _ENERGY_HEAT_S
        while time.monotonic() < warm:
            keep_busy()
        watts = mean_power_w(self._meter, least_s, keep_busy)
        end = self._event()
        self._stream.synchronize()
        return watts * float(start.elapsed_time(end)) / (replays * slot.calls)

    def _run(self, batch: Sequence[Slot], spacer: Slot, policy: Policy, dealing: int | None) -> list[Sample]:
        """Enqueue a batch, each slot after its spacer, and watch the board while it runs."""
        self._clock.reset(len(batch))
        events = []
        for position, slot in enumerate(batch):
            if policy.regime == BURST:
                self._stream.synchronize()
                time.sleep(policy.idle_ms / 1000)
                self._clock.wait(_BACKLOG_US)
            else:
                self.replay(spacer)
            if dealing is not None:
                self._clock.deal_from(dealing)
            self._clock.mark(position, end=False)
            start = self._event()
            slot.graph.launch(self._handle)
            end = self._event()
            self._clock.mark(position, end=True)
            events.append((start, end))
        board = self._watch(events[0][0], events[-1][1])
        self._stream.synchronize()
        clocks = self._clock.mhz(len(batch))
        return [
            Sample(start.elapsed_time(end) * 1000 / slot.calls, mhz, board.power_w, board.temperature_c, board.throttle)
            for slot, (start, end), mhz in zip(batch, events, clocks, strict=True)
        ]

    def _watch(self, start: Any, end: Any) -> Reading:
        """The board between two events: mean power, the last clock and temperature, every throttle reason."""
        while not start.query():
            time.sleep(WATCH_S)
        readings = [self._meter.read()]
        while not end.query():
            time.sleep(WATCH_S)
            readings.append(self._meter.read())
        return Reading(
            power_w=mean(reading.power_w for reading in readings),
            sm_mhz=readings[-1].sm_mhz,
            temperature_c=readings[-1].temperature_c,
            throttle=reduce(or_, (reading.throttle for reading in readings)),
        )

    def _span(self, enqueue: Enqueue, sets: int, calls: int) -> float:
        """Microseconds of `calls` calls, queued while the GPU waits."""
        self._clock.wait(_BACKLOG_US)
        start = self._event()
        for call in range(calls):
            enqueue(call % sets)
        end = self._event()
        self._stream.synchronize()
        return max(0.1, float(start.elapsed_time(end)) * 1000)

    def _event(self) -> Any:
        event = torch().cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event
