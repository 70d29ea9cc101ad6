"""Failures that users of auto-tuners report, each planted and survived, on a simulated GPU in real processes.

`tests/gpu/test_faults_gpu.py` plants those that need a real one.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fake_gpu import FakeSample
from tileseek.measure.policy import BURST_FINAL, FINAL, SCREEN
from tileseek.measure.results import Candidate, Result
from tileseek.measure.supervisor import Measurer
from tileseek.search.race import RACE
from tileseek.search.shootout import FINALS
from tileseek.space import Problem, Schedule

SCHEDULE = Schedule.parse("coop2_128x256x64_s4_w0_c2x1_pall_rm8_reg40-232_tma64x2")
PROBLEM = Problem(512, 512, 512)
QUICK = replace(SCREEN, timeout_s=1.0)


def candidates(behaviours: Sequence[str]) -> list[Candidate]:
    return [Candidate(SCHEDULE, b"cubin", behaviour, 168) for behaviour in behaviours]


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(backend="fake_gpu:FakeGpu", uuid=f"FAKE-failures-{os.getpid()}") as measurer:
        yield measurer


def without_the_process(result: Result) -> dict[str, Any]:
    return {**result.to_json(), "check": None}


def test_fifty_candidates_of_which_ten_crash_hang_or_lie_leave_forty_times_as_they_are(measurer: Measurer) -> None:
    good = [f"us {100 + index}" for index in range(40)]
    bad = ["abort", "hang", "exit", "lost", "lie", "wrong", "odd", "wrong later", "abort in the race", "lost"]
    mixed = [*good, *bad]
    random.Random(0).shuffle(mixed)
    expected = measurer.measure(PROBLEM, candidates(good), QUICK)
    found = measurer.measure(PROBLEM, candidates(mixed), QUICK)
    by_behaviour = {behaviour: result for behaviour, result in zip(mixed, found, strict=True) if behaviour in good}
    assert [without_the_process(by_behaviour[behaviour]) for behaviour in good] == [
        without_the_process(result) for result in expected
    ]
    assert not any(result.correct for behaviour, result in zip(mixed, found, strict=True) if behaviour in bad)


def test_an_illegal_address_as_the_third_of_fifty_costs_one(measurer: Measurer) -> None:
    results = measurer.measure(PROBLEM, candidates(["fine"] * 2 + ["lost"] + ["fine"] * 47), QUICK)
    assert [result.status for result in results] == ["correct"] * 2 + ["runtime"] + ["correct"] * 47


def test_a_time_below_what_the_hardware_allows_is_refused_even_when_it_repeats(measurer: Measurer) -> None:
    seen: list[Result] = []
    (result,) = measurer.measure(PROBLEM, candidates(["lie"]), QUICK, seen.append)
    assert result.status == "implausible"
    assert seen == [result], "told once, after it was measured again"


def test_right_before_timing_and_wrong_after_is_wrong(measurer: Measurer) -> None:
    (result,) = measurer.measure(PROBLEM, candidates(["wrong later"]), QUICK)
    assert (result.status, result.reason) == ("correctness", "wrong after timing")


def test_a_slow_kernel_costs_bounded_time_and_not_a_number_of_samples() -> None:
    """A call of half a second: three samples whatever the rounds, then as many as fit `max_ms`."""
    pytest.importorskip("cuda.bindings")
    from tileseek.measure.timing import Slot, Stopwatch

    class Instant(Stopwatch):
        def __init__(self) -> None:
            pass

        def _run(self, batch: Any, spacer: Any, policy: Any, rng: Any) -> list[Any]:
            return [FakeSample(slot.expected_ms * 1000 / slot.calls) for slot in batch]

    def samples(policy: Any) -> list[int]:
        slots = [Slot(name, None, 1, ms) for name, ms in (("reference", 2.0), ("slow", 500.0), ("fast", 2.0))]  # type: ignore[arg-type]
        Instant().race(slots, slots[0], policy, policy.rounds, 2.0, random.Random(0), lambda _: None, always=1)
        assert {len(slot.samples) for slot in slots} == {policy.rounds}
        return [len(slot.taken) for slot in slots]

    assert samples(SCREEN) == [5, 3, 5]
    assert samples(FINAL) == [24, 20, 24]


def test_every_order_of_a_round_is_drawn() -> None:
    """Nobody always runs after the same neighbour, whose heat it would inherit."""
    pytest.importorskip("cuda.bindings")
    from tileseek.measure.timing import Slot, Stopwatch

    orders = set()

    class Noting(Stopwatch):
        def __init__(self) -> None:
            pass

        def _run(self, batch: Any, spacer: Any, policy: Any, rng: Any) -> list[Any]:
            orders.add(tuple(slot.name for slot in batch))
            return [FakeSample(100.0) for _ in batch]

    slots = [Slot(name, None, 1, 2.0) for name in "abc"]  # type: ignore[arg-type]
    Noting().race(slots, slots[0], SCREEN, 60, 2.0, random.Random(0), lambda _: None)
    assert orders == set(itertools.permutations("abc"))


def test_rounds_of_a_final_go_through_all_gpcs_at_which_dealing_begins() -> None:
    """A kernel's time depends on where the hardware begins to deal CTAs to SMs, and that stays from launch to launch:
    who met in one call met under one dealing, and a repeated final under another."""
    pytest.importorskip("cuda.bindings")
    from tileseek.measure.nvml import Reading
    from tileseek.measure.timing import Slot, Stopwatch

    log: list[Any] = []

    class Noting:
        """A clock, a stream, events and a graph at once: what is asked of them is noted."""

        def __init__(self, name: str = "") -> None:
            self.name = name

        def launch(self, stream: Any) -> None:
            log.append(self.name)

        def deal_from(self, dealing: int) -> None:
            log.append(dealing)

        def mark(self, slot: int, end: bool) -> None:
            log.append("end" if end else "start")

        def mhz(self, slots: int) -> list[float]:
            return [1800.0] * slots

        def elapsed_time(self, other: Any) -> float:
            return 2.0

        def reset(self, slots: int) -> None: ...
        def synchronize(self) -> None: ...

    class Still(Stopwatch):
        def __init__(self) -> None:
            self._clock = self._stream = Noting()  # type: ignore[assignment]
            self._handle = 0

        def _event(self) -> Any:
            return Noting()

        def _watch(self, start: Any, end: Any) -> Reading:
            return Reading(500.0, 1800, 50, 0)

    slots = [Slot(name, Noting(name), 1, 2.0) for name in "abc"]  # type: ignore[arg-type]
    spacer = Slot("spacer", Noting("spacer"), 1, 2.0)  # type: ignore[arg-type]
    Still().race(slots, spacer, SCREEN, 2, 2.0, random.Random(0), lambda _: None)
    assert [each for each in log if each not in "abc"] == ["spacer", "start", "end"] * 6
    log.clear()
    for policy in (*FINALS, RACE, replace(BURST_FINAL, idle_ms=0.0, regime="sustained")):
        log.clear()
        Still().race(slots, spacer, policy, policy.rounds, 2.0, random.Random(policy.name), lambda _: None)
        slot_logs = [log[i : i + 5] for i in range(0, len(log), 5)]
        assert {(spacer, start, end) for spacer, _, start, _, end in slot_logs} == {("spacer", "start", "end")}
        dealings: dict[str, list[int]] = defaultdict(list)
        for _, dealing, _, name, _ in slot_logs:
            dealings[name].append(dealing)
        # Every contestant equally often under each, and all of them under the same in the same round.
        assert dealings.keys() == set("abc") and len({*map(tuple, dealings.values())}) == 1
        assert len(Counter(dealings["a"])) == 8 and len({*Counter(dealings["a"]).values()}) == 1


def test_the_kernels_planted_on_a_gpu_compile() -> None:
    pytest.importorskip("cuda.bindings")
    from plants import DIRECT, PLANTS, SPLIT, spoiled

    assert (DIRECT.store, SPLIT.split_k, SPLIT.reduction) == ("direct", 4, "slots")
    assert len({spoiled(name).cubin for name in PLANTS}) == len(PLANTS)
