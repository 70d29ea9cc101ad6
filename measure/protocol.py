"""What the supervisor and its worker say to each other, pickled over a pipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..space import Problem
from .policy import Policy
from .results import Candidate, Result
from .scoring import Field


@dataclass(frozen=True, slots=True)
class Job:
    """A candidate under its number in the call; `check` is set once it was verified in an earlier worker."""

    index: int
    candidate: Candidate
    check: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """Measure these together."""

    problem: Problem
    policy: Policy
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker's first word: its environment."""

    env: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """What the worker does now, for whom (None: for all), and how long it may be silent."""

    name: str
    index: int | None
    allowance_s: float


@dataclass(frozen=True, slots=True)
class Verified:
    """A candidate ran alone and was right."""

    index: int
    check: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of a candidate."""

    index: int
    result: Result


@dataclass(frozen=True, slots=True)
class Broken:
    """The CUDA context is lost: the worker exits, the candidate of the last stage is to blame."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The request cannot be met; `bad_input` when the caller is to blame."""

    reason: str
    bad_input: bool


@dataclass(frozen=True, slots=True)
class Done:
    """Every job of the request is finished."""


Message = Ready | Stage | Verified | Finished | Broken | Refused | Done
Tell = Callable[[Message], None]


class Rejected(Exception):
    """A candidate has failed, and nothing else has. `status` is one of results.STATUSES."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class ContextLost(Exception):
    """The CUDA context is gone; only a new process helps."""


class NoMemory(Exception):
    """The GPU is too small for the problem."""


class Contestant(Protocol):
    """A verified candidate, ready to be timed."""

    check: Mapping[str, Any]
    smem: int

    def samples(self) -> Any:
        """Its samples, one for each round (scoring.Samples)."""
        ...

    def energies(self) -> Sequence[float]:
        """Millijoules of a call, one for each pass; empty where energy is not counted."""
        ...


class Session(Protocol):
    """One problem under one policy. All methods raise ContextLost when the GPU will not answer any more."""

    def verify(self, candidate: Candidate, check: Mapping[str, Any] | None) -> Contestant:
        """Run the candidate alone and compare, unless `check` says that this was done; ready it for timing.

        Raises:
            Rejected: it failed.
        """
        ...

    def race(self, contestants: Sequence[Contestant], alive: Callable[[float], None]) -> Field:
        """Time them against each other and the references; `alive` gets the seconds until it is called again."""
        ...

    def verify_again(self, contestant: Contestant) -> None:
        """Compare the output of what was timed.

        Raises:
            Rejected: it is wrong now.
        """
        ...

    def close(self) -> None:
        """Free what the candidates of this request took."""
        ...


class Backend(Protocol):
    """What the worker measures with: a GPU, or a simulation of one in tests."""

    def environment(self) -> dict[str, Any]:
        """The journal's `env` object."""
        ...

    def open(self, problem: Problem, policy: Policy) -> Session:
        """Prepare operands and references.

        Raises:
            BadInput: the problem is not one this backend can measure.
            NoMemory: it does not fit.
        """
        ...
