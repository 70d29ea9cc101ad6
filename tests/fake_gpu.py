"""A simulated GPU for the measuring worker: candidates do to it what their `entry` says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tileseek.measure.policy import Policy
from tileseek.measure.protocol import ContextLost, NoMemory, Rejected
from tileseek.measure.results import Candidate
from tileseek.measure.scoring import Field
from tileseek.space import H200, BadInput, Problem

REFERENCE_US = 100.0


@dataclass
class FakeSample:
    us: float
    mhz: float = 1900.0
    power_w: float = 500.0
    temperature_c: int = 50
    throttle: int = 0


@dataclass
class FakeContestant:
    entry: str
    check: Mapping[str, Any]
    smem: int = 1024
    taken: list[FakeSample] = field(default_factory=list)

    def samples(self) -> list[FakeSample]:
        return self.taken

    def energies(self) -> list[float]:
        return []


class FakeGpu:
    """The backend."""

    def environment(self) -> dict[str, Any]:
        return {"gpu": "NVIDIA H200", "uuid": "FAKE", "pid": os.getpid()}

    def open(self, problem: Problem, policy: Policy) -> FakeSession:
        if problem.m == 13:
            raise BadInput("m is 13: valid is any other")
        if problem.m == 14:
            raise NoMemory("too large")
        if problem.m == 15:
            os.abort()
        if problem.m == 16:
            raise Rejected("correctness", "7 wrong elements")
        return FakeSession(problem, policy)


class FakeSession:
    def __init__(self, problem: Problem, policy: Policy) -> None:
        self.problem, self.policy = problem, policy

    def verify(self, candidate: Candidate, check: Mapping[str, Any] | None) -> FakeContestant:
        match candidate.entry:
            case "abort":
                os.abort()
            case "exit":
                os._exit(3)
            case "hang":
                time.sleep(1000)
            case "lost":
                raise ContextLost("CUDA_ERROR_ILLEGAL_ADDRESS")
            case "wrong":
                raise Rejected("correctness", "1 of 4 elements is wrong")
            case "odd":
                raise KeyError("something unforeseen")
        return FakeContestant(candidate.entry, check or {"verified_by": os.getpid()})

    def race(self, contestants: Sequence[FakeContestant], alive: Callable[[float], None]) -> Field:
        if any(contestant.entry == "abort in the race" for contestant in contestants):
            os.abort()
        for _ in range(self.policy.rounds):
            alive(self.policy.timeout_s)
            for contestant in contestants:
                us = {"lie": 1e-6, "fast": REFERENCE_US / 2}.get(contestant.entry, REFERENCE_US)
                if contestant.entry.startswith("us "):
                    us = float(contestant.entry.split()[1])
                contestant.taken.append(FakeSample(us))
        reference = [FakeSample(REFERENCE_US)] * self.policy.rounds
        return Field(self.problem, H200, {"cublas": reference, "cublaslt0": reference}, self.policy.slot_ms)

    def verify_again(self, contestant: FakeContestant) -> None:
        if contestant.entry == "wrong later":
            raise Rejected("correctness", "wrong after timing")

    def close(self) -> None:
        pass


class SteadyGpu(FakeGpu):
    """The same in every process, so that a run can go on where another stopped; a verification takes a while."""

    def environment(self) -> dict[str, Any]:
        return {"gpu": "NVIDIA H200", "generator": "1", "compiler": "none"}

    def open(self, problem: Problem, policy: Policy) -> FakeSession:
        time.sleep(0.01)
        return SlowSession(problem, policy)


class SlowSession(FakeSession):
    def verify(self, candidate: Candidate, check: Mapping[str, Any] | None) -> FakeContestant:
        time.sleep(0.003)
        return super().verify(candidate, check)
