"""The worker's GPU: operands and references of a problem, verification of candidates, races between them."""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from ..codegen.nvrtc import compiler_version
from ..codegen.plan import LaunchPlan, launch_plan
from ..codegen.source import GENERATOR_VERSION
from ..space import POWER_LIMITED_MHZ, BadInput, Device, Problem, find_device, follows_clock
from . import check
from .clock import Clock
from .cublas import CublasLt, LibraryError, Reference, cublas_default
from .driver import BoundLaunch, DriverError, Kernel
from .fused import EXACT_ACTIVATIONS, finish_exact
from .gpus import hopper
from .lazy import torch
from .nvml import Nvml, NvmlError
from .operands import DEVICE, OperandSet, Output, integer_set, needed_bytes, normal_set, set_count
from .policy import BURST, Policy
from .protocol import Contestant, ContextLost, NoMemory, Rejected
from .results import Candidate
from .scoring import Field, Samples
from .timing import Slot, Stopwatch

_HEAT_MS, _LOOK_MS = 30.0, 10.0
"""How long cuBLAS runs before its clock is looked at, and while: the power limit takes hold within 30 ms."""

_KEPT_KERNELS = 256

_REPEATS_US = 300_000.0
_LEAST_REPEATS = 3
"""Time for the launches that have to give the same output again, and how many there are at least."""

_REPEATED_ELEMENTS = {"deterministic": 2**28, "atomic": 2**25}
"""Elements of the output, its first rows, that are compared: with a copy of its own dtype, or in float32. Neither takes
more memory than checking does."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a kernel has to compute: the outputs of `problem` on the first operand sets, by name, in float32."""

    problem: Problem
    exact: Sequence[Mapping[str, Any]]
    allowed: check.Tolerance

    @classmethod
    def of(cls, problem: Problem, sets: Sequence[OperandSet]) -> Goal:
        """That of `sets`, within the tolerance of the problem."""
        return cls(problem, [_float32_result(problem, operands) for operands in sets], check.tolerance(problem))


@dataclass(slots=True)
class GpuContestant:
    """A verified candidate with its launches, one for each operand set, and its slot."""

    check: Mapping[str, Any]
    smem: int
    plain: bool
    slot: Slot
    workspace: Any
    """Kept alive: the slot's graph knows its address alone."""

    def samples(self) -> Samples:
        """Its samples, one for each round."""
        return self.slot.samples

    def energies(self) -> Sequence[float]:
        """Millijoules of a call, one for each pass."""
        return self.slot.energies


class GpuBackend:
    """The first visible GPU, through torch's context and one side stream."""

    def __init__(self) -> None:
        cuda = torch().cuda
        if not cuda.is_available():
            raise BadInput("gpu: torch sees none; valid is a machine with an NVIDIA GPU and its driver")
        cuda.init()
        torch().set_float32_matmul_precision("highest")
        torch().set_grad_enabled(False)
        self.stream = cuda.Stream()
        cuda.set_stream(self.stream)
        self.handle = int(self.stream.cuda_stream)
        self.properties = cuda.get_device_properties(0)
        self.device: Device = find_device(self.properties.name)
        self.sm_count = int(self.properties.multi_processor_count)
        self.uuid = hopper().uuid
        self.nvml = Nvml(self.uuid)
        self.clock = Clock(self.handle, self.sm_count)
        self.stopwatch = Stopwatch(self.stream, self.clock, self.nvml)
        self.lt = CublasLt(self.handle)
        self._session: GpuSession | None = None
        self._companions: dict[Problem, tuple[OperandSet, Any]] = {}
        self._kernels: OrderedDict[str, Kernel] = OrderedDict()
        self.rankings: dict[tuple[Problem, str], list[str]] = {}
        """Names of cuBLASLt's algorithms, fastest first, by problem and policy."""

    def environment(self) -> dict[str, Any]:
        """The journal's `env` object."""
        properties = self.properties
        return {
            "gpu": properties.name,
            "uuid": self.uuid,
            "cc": f"{properties.major}.{properties.minor}",
            "sm_count": self.sm_count,
            "memory_bytes": int(properties.total_memory),
            "power_limit_w": self.nvml.power_limit_w(),
            "driver": self.nvml.driver(),
            "cuda": str(torch().version.cuda),
            "torch": str(torch().__version__),
            "cublaslt": self.lt.version(),
            "compiler": compiler_version(),
            "generator": GENERATOR_VERSION,
        }

    def open(self, problem: Problem, policy: Policy) -> GpuSession:
        """The session of a problem; the last one is kept, with its operands and references."""
        session = self._session
        if session is None or session.spoiled or (session.problem, session.policy) != (problem, policy):
            self._session = None
            with self.guarded():
                if session is not None:
                    session.discard()
                    del session
                torch().cuda.empty_cache()
                session = self._session = GpuSession(self, problem, policy)
        return session

    def kernel(self, candidate: Candidate, problem: Problem) -> Kernel:
        """The loaded kernel of a candidate: schedules that differ in their launch alone share it."""
        key = hashlib.sha256(candidate.cubin).hexdigest()
        if key not in self._kernels:
            plan = launch_plan(problem, candidate.schedule)
            self._kernels[key] = Kernel(candidate.cubin, candidate.entry, plan, self.sm_count)
        self._kernels.move_to_end(key)
        return self._kernels[key]

    def trim_kernels(self) -> None:
        """Unload the kernels used longest ago; none of their launches may be left."""
        while len(self._kernels) > _KEPT_KERNELS:
            self._kernels.popitem(last=False)[1].unload()

    def companion(self, problem: Problem) -> tuple[OperandSet, dict[str, Any]]:
        """Integer operands of a small problem and its outputs by name, right to the bit."""
        if problem not in self._companions:
            operands = integer_set(problem, seed=0)
            exact = finish_exact(problem, _product(operands), operands)
            self._companions[problem] = (operands, {name: d.to(operands.d.dtype) for name, d in exact.items()})
        return self._companions[problem]

    def forget(self) -> None:
        """Make new operands before the next use: a candidate may have written into these."""
        self._companions.clear()
        if self._session is not None:
            self._session.spoiled = True

    def synchronize(self) -> None:
        """Wait for the stream; raises ContextLost when it fails, for errors of launches show here."""
        try:
            self.stream.synchronize()
        except RuntimeError as error:
            raise ContextLost(_first_line(error)) from error

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn errors of torch and the driver into what they mean: no memory, a lost context, a failed candidate."""
        try:
            yield
        except torch().cuda.OutOfMemoryError as error:
            raise NoMemory(_first_line(error)) from error
        except (RuntimeError, DriverError) as error:
            self.synchronize()  # a context that still answers was not lost
            if "OUT_OF_MEMORY" in str(error):
                raise NoMemory(_first_line(error)) from error
            raise Rejected("runtime", _first_line(error)) from error


class GpuSession:
    """One problem under one policy: operand sets, float32 references, cuBLAS's contestants."""

    def __init__(self, gpu: GpuBackend, problem: Problem, policy: Policy) -> None:
        self._gpu, self.problem, self.policy = gpu, problem, policy
        self.spoiled = False
        self._slots: list[Slot] = []
        default = cublas_default(problem)
        sets = set_count(problem, gpu.device, policy.l2_multiple)
        need = needed_bytes(problem, sets, policy.check_seeds)
        free = torch().cuda.mem_get_info()[0]
        if need > free:
            raise NoMemory(f"{problem.key} needs {need / 2**30:.1f} GiB, the GPU has {free / 2**30:.1f} free")
        self._seed = 1000 * policy.seed  # of the first operand set; there are fewer than 1000
        self._sets = [normal_set(problem, self._seed + index) for index in range(sets)]
        self._goals: dict[bool, Goal] = {}
        self._rng = random.Random(f"{policy.key} {problem.key}")
        watch = gpu.stopwatch
        self._verify_reference(default)
        us = watch.estimate_us(self._calls(default), sets)
        probe = watch.slot(default.name, self._calls(default), sets, us, max(1.0, policy.spacer_ms))
        self._mhz = watch.sustained_mhz(probe, _HEAT_MS, _LOOK_MS)
        self._slot_ms = policy.slot(self._mhz)
        self._spacer = probe
        self._default = watch.slot(default.name, self._calls(default), sets, us, self._slot_ms)
        self._finalists = self._race_cublaslt()

    def verify(self, candidate: Candidate, checked: Mapping[str, Any] | None) -> GpuContestant:
        """Run the candidate alone and compare; capture its slot."""
        gpu = self._gpu
        if self.spoiled:
            self._renew()
        with self._guarded():
            goal = self._goal(candidate.plain)
            plan = launch_plan(goal.problem, candidate.schedule)
            kernel = gpu.kernel(candidate, goal.problem)
            if checked is None:
                names = self._verify_companions(goal.problem, candidate, kernel)
            workspace = _workspace(kernel, plan)
            launches = [_bind(kernel, plan, operands, workspace) for operands in self._sets]

            def enqueue(index: int) -> None:
                launches[index].launch(gpu.handle)

            if checked is None:
                verdict = self._compare(enqueue, goal)
                checked = {
                    "worst": verdict.worst,
                    "norm": verdict.norm,
                    "seeds": self.policy.check_seeds,
                    "companions": names,
                }
            us = gpu.stopwatch.estimate_us(enqueue, len(self._sets))
            if "repeats" not in checked:  # not verified by an earlier worker either
                checked = {**checked, "repeats": self._repeat(candidate, goal, enqueue, us)}
            slot = gpu.stopwatch.slot(candidate.schedule.name, enqueue, len(self._sets), us, self._slot_ms)
            self._slots.append(slot)
        return GpuContestant(checked, plan.smem_bytes, candidate.plain, slot, workspace)

    def race(self, contestants: Sequence[Contestant], alive: Callable[[float], None]) -> Field:
        """All rounds: cuBLAS's default, the best of cuBLASLt and the contestants."""
        references = [self._default, *self._finalists]
        own = [contestant.slot for contestant in contestants if isinstance(contestant, GpuContestant)]
        for slot in references:
            slot.samples.clear()
            slot.energies.clear()
        policy = self.policy
        self._warm_up(references)
        try:
            self._gpu.stopwatch.race(
                [*references, *own],
                self._spacer,
                policy,
                policy.rounds,
                self._slot_ms,
                self._rng,
                alive,
                always=len(references),
            )
            if policy.energy_ms:
                self._gpu.stopwatch.count_energy([*references, *own], policy, self._rng, alive)
        except NvmlError as error:
            raise BadInput(f"energy: {error}; valid is to measure time alone") from error
        except (RuntimeError, DriverError) as error:
            raise ContextLost(_first_line(error)) from error
        samples = {slot.name: tuple(slot.samples) for slot in references}
        energies = {slot.name: tuple(slot.energies) for slot in references}
        return Field(self.problem, self._gpu.device, samples, self._slot_ms, energies)

    def verify_again(self, contestant: Contestant) -> None:
        """Poison the outputs, run the timed graph once more, compare.

        A candidate that is wrong now gets fresh operands and a second try: another may have written into the old ones.
        """
        assert isinstance(contestant, GpuContestant)
        with self._guarded():
            try:
                self._replay_and_judge(contestant)
            except Rejected:
                self._renew()
                self._replay_and_judge(contestant)

    def close(self) -> None:
        """Free the candidates' graphs, and kernels beyond those worth keeping."""
        self._gpu.synchronize()
        _close(self._slots)
        self._gpu.trim_kernels()

    def discard(self) -> None:
        """Free the references' graphs; the session is not used any more."""
        self.close()
        _close([self._spacer, self._default, *self._finalists])

    def _goal(self, plain: bool) -> Goal:
        """What candidates have to compute, with the problem's epilogue or `plain`."""
        if plain not in self._goals:
            problem = self.problem.plain if plain else self.problem
            self._goals[plain] = Goal.of(problem, self._sets[: self.policy.check_seeds])
        return self._goals[plain]

    def _replay_and_judge(self, contestant: GpuContestant) -> None:
        seeds = min(self.policy.check_seeds, contestant.slot.calls)
        for operands in self._sets[:seeds]:
            operands.poison()
        self._gpu.stopwatch.replay(contestant.slot)
        self._judge(seeds, self._goal(contestant.plain), "after timing")

    def _renew(self) -> None:
        """Draw the operands anew, in place, and their references: something may have written into them."""
        for index, operands in enumerate(self._sets):
            operands.fill_normal(self._seed + index)
        self._goals.clear()
        self.spoiled = False

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """`GpuBackend.guarded` for one candidate, whose lack of memory is its own."""
        try:
            with self._gpu.guarded():
                yield
        except NoMemory as error:
            raise Rejected("memory", str(error)) from error

    def _verify_companions(self, problem: Problem, candidate: Candidate, kernel: Kernel) -> list[str]:
        """Odd shapes, on integers, right to the bit; returns their names.

        Raises:
            Rejected: one is wrong.
        """
        gpu = self._gpu
        problems = check.companions(problem, candidate.schedule, gpu.device)
        counts = []
        for problem in problems:
            operands, exact = gpu.companion(problem)
            plan = launch_plan(problem, candidate.schedule)
            launch = _bind(kernel, plan, operands, _workspace(kernel, plan))
            for _ in range(2):  # the second shows that the first left its workspace as it has to
                operands.poison()
                launch.launch(gpu.handle)
            counts += [wrong_on_integers(problem, operands, exact), operands.guards_touched()]
        if not counts:
            return []
        numbers = self._read(torch().stack(counts))
        for problem, wrong, touched in zip(problems, numbers[::2], numbers[1::2], strict=True):
            shape = check.shape(problem)
            if touched:
                gpu.forget()
                raise Rejected("correctness", f"{touched:.0f} bytes outside the output are written for {shape}")
            if wrong:
                gpu.forget()
                elements = problem.batch * problem.m * problem.d_columns
                raise Rejected("correctness", f"{wrong:.0f} of {elements} elements are wrong for {shape}")
        return [check.shape(problem) for problem in problems]

    def _compare(self, enqueue: Callable[[int], None], goal: Goal) -> check.Verdict:
        """The worst verdict of one call on each checked operand set.

        Raises:
            Rejected: one is wrong.
        """
        for index in range(self.policy.check_seeds):
            self._sets[index].poison()
            enqueue(index)
        return self._judge(self.policy.check_seeds, goal, "")

    def _repeat(self, candidate: Candidate, goal: Goal, enqueue: Callable[[int], None], us: float) -> int:
        """Run the candidate again and again on one operand set: a race that is lost once in a hundred launches shows.

        Returns how often: as the policy says, within a bounded time.

        Raises:
            Rejected: an output differs from the first: in any bit, or beyond the tolerance where sums depend on the
                order of arrival.
        """
        repeats = min(self.policy.check_repeats, max(_LEAST_REPEATS, int(_REPEATS_US / us)))
        if not repeats:
            return 0
        operands = self._sets[0]
        numerics = candidate.schedule.numerics
        compared = []
        for name, exact in goal.exact[0].items():
            output = operands.outputs[name]
            rows, columns = output.rows.shape
            part = next(check.row_slices(rows, columns, _REPEATED_ELEMENTS[numerics]))
            first = output.rows[part].view(torch().uint8).clone()
            compared.append((output, part, first, exact[part]))
        differing = []
        for _ in range(repeats):
            operands.poison()
            enqueue(0)
            for output, part, first, exact in compared:
                again = output.rows[part]
                if numerics == "deterministic":
                    differing.append((again.view(torch().uint8) != first).any())
                else:
                    differing.append(~(check.errors(again.float(), exact, goal.allowed)[0] <= 1))
        count = sum(self._read(torch().stack(differing)))
        if count:
            self._gpu.forget()
            raise Rejected("correctness", f"{count:.0f} of {repeats} further launches give another output")
        return repeats

    def _judge(self, seeds: int, goal: Goal, when: str) -> check.Verdict:
        verdicts = []
        for operands, exact in zip(self._sets[:seeds], goal.exact, strict=False):
            for name, expected in exact.items():
                verdicts.append(self._judge_output(name, operands.outputs[name], expected, goal.allowed, when))
        return max(verdicts, key=lambda verdict: verdict.worst)

    def _judge_output(
        self, name: str, output: Output, exact: Any, allowed: check.Tolerance, when: str
    ) -> check.Verdict:
        d = output.rows
        rows = list(check.row_slices(*d.shape))
        numbers = [torch().stack(check.errors(d[part].float(), exact[part], allowed)).double() for part in rows]
        flat = self._read(torch().cat([*numbers, output.guards_touched().double().reshape(1)]))
        what = "" if name == "d" else f" {name}"
        if flat[-1]:
            self._gpu.forget()
            raise Rejected("correctness", f"{flat[-1]:.0f} bytes outside the output{what} are written {when}".rstrip())
        parts = [(flat[3 * i], flat[3 * i + 1], flat[3 * i + 2]) for i in range(len(rows))]
        verdict = check.verdict(parts, allowed)
        if not verdict.right:
            where = self._first_wrong(output, exact, allowed)
            self._gpu.forget()
            raise Rejected("correctness", f"{verdict}{where}{what} {when}".rstrip())
        return verdict

    def _first_wrong(self, output: Output, exact: Any, allowed: check.Tolerance) -> str:
        d = output.rows
        for part in check.row_slices(*d.shape):
            count, row, column = check.wrong_elements(d[part].float(), exact[part], allowed)
            if count:
                return f"; {count} wrong elements, the first at ({part.start + row}, {column})"
        return ""

    def _read(self, tensor: Any) -> list[float]:
        """Bring numbers to the host; the errors of all launches so far show here."""
        self._gpu.synchronize()
        numbers: list[float] = tensor.tolist()
        return numbers

    def _calls(self, reference: Reference) -> Callable[[int], None]:
        return partial(_enqueue_reference, reference, self._sets)

    def _verify_reference(self, reference: Reference) -> None:
        """A reference that computes something else is no reference: fast for the wrong reason."""
        goal = replace(self._goal(plain=False), allowed=check.library_tolerance(self.problem))
        self._compare(self._calls(reference), goal)

    def _race_cublaslt(self) -> list[Slot]:
        """The slots of the fastest algorithms of cuBLASLt: of all it offers, in a race of its own."""
        gpu, policy = self._gpu, self.policy
        algorithms = {algorithm.name: algorithm for algorithm in gpu.lt.algorithms(self.problem)}
        key = (self.problem, policy.key)
        ranking = gpu.rankings.get(key)
        if ranking is None or not set(ranking) <= set(algorithms):
            slots = self._algorithm_slots(algorithms)
            if not slots:  # cuBLASLt offers nothing for some sizes: its default stands alone
                return []
            always = len(slots)
            gpu.stopwatch.race(
                slots, self._spacer, policy, policy.race_rounds, self._slot_ms, self._rng, lambda _: None, always
            )
            by_time = policy.claims or self._mhz >= POWER_LIMITED_MHZ or not follows_clock(self.problem)
            slots.sort(key=lambda slot: median(s.us if by_time else s.us * s.mhz for s in slot.taken))
            ranking = gpu.rankings[key] = [slot.name for slot in slots]
            losers = slots[policy.finalists :]
            del slots[policy.finalists :]
            _close(losers)
            return slots
        return self._algorithm_slots({name: algorithms[name] for name in ranking[: policy.finalists]})

    def _algorithm_slots(self, algorithms: Mapping[str, Reference]) -> list[Slot]:
        """The slots of those algorithms that run and are right."""
        slots = []
        for name, algorithm in algorithms.items():
            try:
                self._verify_reference(algorithm)
            except (Rejected, LibraryError):
                continue
            us = self._gpu.stopwatch.estimate_us(self._calls(algorithm), len(self._sets))
            slots.append(self._gpu.stopwatch.slot(name, self._calls(algorithm), len(self._sets), us, self._slot_ms))
        self.spoiled = False
        return slots

    def _warm_up(self, references: Sequence[Slot]) -> None:
        """Bring the GPU to the temperature and power of the race: the host has verified for a while."""
        if self.policy.regime == BURST:
            return
        for _ in range(max(1, round(_HEAT_MS / self._slot_ms))):
            self._gpu.stopwatch.replay(references[0])


def _workspace(kernel: Kernel, plan: LaunchPlan) -> Any:
    """Zeroed memory for a launch of `plan`."""
    return torch().zeros(kernel.workspace_bytes(plan), dtype=torch().uint8, device=DEVICE)


def _bind(kernel: Kernel, plan: LaunchPlan, operands: OperandSet, workspace: Any) -> BoundLaunch:
    return BoundLaunch(kernel, plan, {**operands.values, "workspace": workspace.data_ptr()})


def _close(slots: list[Slot]) -> None:
    """Free the graphs of `slots` and empty the list."""
    while slots:
        slots.pop().graph.close()


def _enqueue_reference(reference: Reference, sets: Sequence[OperandSet], index: int) -> None:
    reference.enqueue(sets[index])


def wrong_on_integers(problem: Problem, operands: OperandSet, exact: Mapping[str, Any]) -> Any:
    """How many elements of the outputs differ from `exact`: in any bit, or after an inexact activation by more than the
    tolerance."""
    allowed = check.tolerance(problem)
    wrong = []
    for name, output in operands.outputs.items():
        got, expected = output.matrix, exact[name]
        if name == "aux" or problem.fused.activation in EXACT_ACTIVATIONS:
            wrong.append((got.float() != expected.float()).sum())
        else:
            worst = expected.float().abs() * allowed.relative * 2 + allowed.absolute
            wrong.append((~((got.float() - expected.float()).abs() <= worst)).sum())
    return sum(wrong)


def _float32_result(problem: Problem, operands: OperandSet) -> dict[str, Any]:
    """The outputs by name in float32 without tensor cores, as [rows, columns] with the rows of all products."""
    exact = finish_exact(problem, _product(operands), operands)
    return {name: output.flatten(0, -2) for name, output in exact.items()}


def _product(operands: OperandSet) -> Any:
    """A x B in float32, in slices of rows."""
    product = torch().empty(operands.product.shape, dtype=torch().float32, device=operands.d.device)
    whole = operands.a, operands.b, product
    for a, b, d in [whole] if product.ndim == 2 else zip(*whole, strict=True):
        wide = b.float()
        for part in check.row_slices(d.shape[0], max(d.shape[1], a.shape[1])):
            torch().mm(a[part].float(), wide, out=d[part])
    return product


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
