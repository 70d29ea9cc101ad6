"""The table: the best schedule of every measured problem, derived from journals. Same journals, same bytes."""

from __future__ import annotations

import json
import math
import re
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cost_model.costs import by_problem, costs
from ..space import (
    DTYPE_BYTES,
    FOR_TIME,
    OBJECTIVES,
    BadInput,
    Device,
    Kind,
    Problem,
    Schedule,
    find_device,
    violations,
)
from ..space.problem import MATRICES, TMA_ALIGNMENT
from ..space.rules import read_schedule
from .journal import JournalContents, Measure, of_today, policy_family, policy_name
from .noise import Noise
from .selection import Selection, select_final

if TYPE_CHECKING:
    from .query import Choice

TABLE_SCHEMA = 1
"""Tables with a larger `schema` come from a newer tileseek and are refused."""

ALTERNATES = 3
"""Most alternates of an entry."""

FINAL_POLICY = "final"
"""First word of the policies of final shoot-outs, in which the best candidates met in long slots."""


Place = tuple[float, float, float, float]
"""Logarithms of a problem's m, n, k and batch: near each other are problems of nearly the same sizes."""


def place_of(problem: Problem) -> Place:
    """Where a problem is among others."""
    return math.log(problem.m), math.log(problem.n), math.log(problem.k), math.log(problem.batch)


@dataclass(frozen=True, slots=True)
class Timed:
    """A schedule and what was measured of it: microseconds a call, and cuBLAS's time over ours."""

    schedule: Schedule
    median_us: float
    vs_cublas: float | None

    def to_json(self) -> dict[str, Any]:
        """An alternate of a table entry."""
        return {"schedule": self.schedule.to_json(), "median_us": self.median_us, "vs_cublas": self.vs_cublas}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Timed:
        """The inverse of `to_json`."""
        return cls(read_schedule(obj["schedule"]), _time(obj["median_us"]), _ratio(obj["vs_cublas"]))


@dataclass(frozen=True, slots=True)
class Entry:
    """What the table knows of one problem."""

    problem: Problem
    schedule: Schedule
    median_us: float
    noise: float
    """Half the interquartile range of the rounds' times, over their median."""
    vs_cublas: float | None
    """Time of the cuBLAS default over ours, paired: above 1 we are faster."""
    vs_cublaslt_best: float | None
    """Time of the best cuBLASLt algorithm over ours, paired."""
    alternates: tuple[Timed, ...]
    """The next best, each another kernel, for callers that time a few themselves."""
    n_measured: int
    """Distinct schedules measured."""
    numerics: Mapping[str, Any]
    """`class`: whether equal inputs always give equal bits (`Schedule.numerics`); `rel_error`: the largest error
    found of a whole output, against a reference of higher precision."""
    policy: str
    """The measuring policy of `median_us` and the ratios."""
    tied: tuple[str, ...] = ()
    """Names of schedules that the final did not tell from the fastest: the choice among them is by rule."""
    energy_mj: float | None = None
    """Millijoules of a call, where they were measured."""

    @property
    def final(self) -> bool:
        """Whether `median_us` and the ratios come from a final shoot-out: only those are claims."""
        return _of_final(self.policy)

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The winner, then the alternates."""
        return (self.schedule, *(alternate.schedule for alternate in self.alternates))

    def to_json(self) -> dict[str, Any]:
        """An element of `entries`."""
        return {
            "problem": self.problem.to_json(),
            "schedule": self.schedule.to_json(),
            "median_us": self.median_us,
            "noise": self.noise,
            "vs_cublas": self.vs_cublas,
            "vs_cublaslt_best": self.vs_cublaslt_best,
            "alternates": [alternate.to_json() for alternate in self.alternates],
            "n_measured": self.n_measured,
            "numerics": dict(self.numerics),
            "policy": self.policy,
            "tied": list(self.tied),
            "energy_mj": self.energy_mj,
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Entry:
        """The inverse of `to_json`; fields added by a later version of the same schema are ignored.

        Raises:
            BadInput, KeyError, TypeError, ValueError: the entry cannot be used.
        """
        return cls(
            problem=Problem.from_json(obj["problem"]),
            schedule=read_schedule(obj["schedule"]),
            median_us=_time(obj["median_us"]),
            noise=_finite(obj["noise"]),
            vs_cublas=_ratio(obj["vs_cublas"]),
            vs_cublaslt_best=_ratio(obj["vs_cublaslt_best"]),
            alternates=tuple(Timed.from_json(alternate) for alternate in obj["alternates"]),
            n_measured=int(obj["n_measured"]),
            numerics=dict(obj["numerics"]),
            policy=str(obj["policy"]),
            tied=tuple(str(name) for name in obj.get("tied", ())),
            energy_mj=_ratio(obj.get("energy_mj")),
        )


_SIZES_AND_PLACES = ("m", "n", "k", "batch", "broadcast", "a_align", "b_align", "d_align")
"""Fields of a problem that are not of its kind."""


def _alignments(problem: Problem) -> list[tuple[str, int]]:
    """The alignments that are of its kind: those that TMA does not take."""
    aligned = [(matrix, problem.alignment(matrix)) for matrix in MATRICES]
    return [(matrix, size) for matrix, size in aligned if size < TMA_ALIGNMENT]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Best schedules for one device class."""

    device: Device
    generator: str
    compiler: str
    entries: tuple[Entry, ...] = field(repr=False)
    """Sorted by problem."""
    predictor: Mapping[str, Any] | None = field(default=None, repr=False)
    """What `cost_model.predictor` evaluates for problems that are not in the table."""
    held_out_regret: Mapping[str, Any] | None = None
    """Regret of the predictor's choices on problems it was not trained on."""
    objective: str = FOR_TIME
    """What the schedules were chosen for: one of `space.OBJECTIVES`."""
    skipped: int = 0
    """Entries that could not be read."""
    by_problem: Mapping[Problem, Entry] = field(init=False, repr=False)
    runnable: Mapping[Problem, Entry] = field(init=False, repr=False)
    """The entries whose schedule can run its problem on the device by the rules of this version: checked here once,
    so that a query need not."""
    by_kind: Mapping[Kind, tuple[tuple[Place, Entry], ...]] = field(init=False, repr=False)
    choices: dict[tuple[Problem, Device, bool], Choice] = field(init=False, repr=False, default_factory=dict)
    """Answers already given (`query.best_schedule`)."""

    def __post_init__(self) -> None:
        kinds: dict[Kind, list[tuple[Place, Entry]]] = defaultdict(list)
        for entry in self.entries:
            kinds[entry.problem.kind].append((place_of(entry.problem), entry))
        by_problem = {entry.problem: entry for entry in self.entries}
        runnable = {p: entry for p, entry in by_problem.items() if not violations(p, entry.schedule, self.device)}
        object.__setattr__(self, "by_problem", by_problem)
        object.__setattr__(self, "runnable", runnable)
        object.__setattr__(self, "by_kind", {kind: tuple(placed) for kind, placed in kinds.items()})

    def missing(self, problems: Iterable[Problem]) -> list[Problem]:
        """Those of `problems` that have no entry."""
        return [problem for problem in problems if problem not in self.by_problem]

    def coverage(self) -> list[dict[str, Any]]:
        """For every kind of problem: how many entries, and the smallest and largest m, n and k, and batch where there
        are batches."""
        rows = []
        for kind in sorted(self.by_kind):
            entries = [entry for _, entry in self.by_kind[kind]]
            words = entries[0].problem.to_json().items()
            row = {name: word for name, word in words if name not in _SIZES_AND_PLACES}
            row |= {f"{matrix}_align": size for matrix, size in _alignments(entries[0].problem)}
            row["problems"] = len(entries)
            for size in ("m", "n", "k", "batch") if entries[0].problem.batched else ("m", "n", "k"):
                values = [getattr(entry.problem, size) for entry in entries]
                row[size] = [min(values), max(values)]
            rows.append(row)
        return rows

    def to_json(self) -> dict[str, Any]:
        """The whole table."""
        return {
            "schema": TABLE_SCHEMA,
            "device": self.device.to_json(),
            "generator": self.generator,
            "compiler": self.compiler,
            "objective": self.objective,
            "policy": sorted({entry.policy for entry in self.entries}),
            "coverage": self.coverage(),
            "held_out_regret": self.held_out_regret,
            "entries": [entry.to_json() for entry in self.entries],
            "predictor": self.predictor,
        }

    def dumps(self) -> str:
        """The table as text, an entry a line: equal tables are equal bytes, and a diff shows what changed."""
        lines = []
        for name, value in self.to_json().items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                text = "[\n" + ",\n".join(f"  {_compact(item)}" for item in value) + "\n ]"
            else:
                text = _compact(value)
            lines.append(f' "{name}": {text}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def build_table(
    contents: JournalContents,
    device: Device,
    predictor: Mapping[str, Any] | None = None,
    held_out_regret: Mapping[str, Any] | None = None,
    objective: str = FOR_TIME,
    noise: Noise | None = None,
) -> Table:
    """The table of `device` from everything in journals that is verified, current and tuned for `objective`.

    Current is what was measured on that device with the newest generator, and with the newest compiler among
    those. Final shoot-outs count before screening: their slots are long, and the candidates met each other. What they
    do not tell apart by `noise` is a tie, which the entry declares.

    Raises:
        BadInput: nothing in the journals was measured on `device`.
    """
    generator, compiler = newest_tools(contents, device)
    groups = by_problem(current_measures(contents, device, objective))
    choose = partial(select_final, device=device, noise=noise or Noise(), objective=objective)
    entries = []
    for problem in sorted(groups):
        # What a rule refuses today may have been measured before there was the rule.
        runs = partial(_runs, problem, device)
        entries.append(_entry(problem, _ranked(groups[problem], objective, choose, runs), runs))
    found = tuple(entry for entry in entries if entry is not None)
    return Table(device, generator, compiler, found, predictor, held_out_regret, objective)


def current_measures(contents: JournalContents, device: Device, objective: str = FOR_TIME) -> list[Measure]:
    """What a table of `device` is made from, in an order that does not depend on that of the journals.

    Raises:
        BadInput: nothing in the journals was measured on `device`.
    """
    return _correct(current(contents, device).measures, objective)


def all_measures(contents: JournalContents, device: Device) -> list[Measure]:
    """What was measured on `device` of today's kernels and of older ones, ordered likewise: what searches are replayed
    on, where a schedule stands for what it was when it was measured."""
    return _correct([m for m in contents.measures if _of_device(contents.envs.get(m.env, {}), device)], FOR_TIME)


def _correct(measures: Iterable[Measure], objective: str) -> list[Measure]:
    found = [m for m in measures if m.status == "correct" and m.objective == objective]
    return sorted(found, key=lambda m: (m.problem, m.schedule, m.policy, m.median_us or 0.0))


def current(contents: JournalContents, device: Device) -> JournalContents:
    """The part of journals from `device`, the newest compiler and kernels as the newest generator makes them.

    Raises:
        BadInput: nothing in the journals was measured on `device`.
    """
    generator, compiler = newest_tools(contents, device)
    envs = {key: env for key, env in contents.envs.items() if _of_device(env, device) and env["compiler"] == compiler}
    return JournalContents(
        measures=of_today(contents.measures, envs, generator),
        compiles=of_today(contents.compiles, envs, generator),
        envs=envs,
        skipped=contents.skipped,
    )


def stale(contents: JournalContents, device: Device, tools: tuple[str, str]) -> Counter[tuple[str, str]]:
    """How many measures of `device` are of other kernels than `tools`, a generator and a compiler, make of the same
    schedules: by their own tools. A table leaves them out."""
    generator, compiler = tools
    envs = {key: env for key, env in contents.envs.items() if _of_device(env, device)}
    made_with = {key: (str(env["generator"]), str(env["compiler"])) for key, env in envs.items()}
    alike = {key: env for key, env in envs.items() if env["compiler"] == compiler}

    def tally(measures: Iterable[Measure]) -> Counter[tuple[str, str]]:
        return Counter(made_with[m.env] for m in measures if m.env in made_with)

    return tally(contents.measures) - tally(of_today(contents.measures, alike, generator))


def newest_tools(contents: JournalContents, device: Device) -> tuple[str, str]:
    """The newest generator that `device` was measured with, and the newest compiler among those.

    Raises:
        BadInput: the journals have no measure from `device`.
    """
    used = {measure.env for measure in contents.measures}
    tools = [
        (env["generator"], env["compiler"])
        for key, env in contents.envs.items()
        if key in used and _of_device(env, device)
    ]
    if not tools:
        raise BadInput(f"the journals hold no measurement of {device.name}: valid is a journal made on one")
    return max(tools, key=lambda pair: (_version(pair[0]), _version(pair[1]), pair))


def load_table(path: str | Path) -> Table:
    """Read a table. Entries that cannot be used are left out and counted in `skipped`, and a warning says so.

    Raises:
        BadInput: the file cannot be read, is not a table, or has a newer schema.
    """
    try:
        obj = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the table {path} is not JSON: {error}") from error
    schema = obj.get("schema") if isinstance(obj, dict) else None
    if schema != TABLE_SCHEMA:
        raise BadInput(f"the table {path} has schema {schema!r}: valid is {TABLE_SCHEMA}")
    entries = []
    skipped = 0
    try:
        device = find_device(obj["device"]["name"])
        for item in obj["entries"]:
            try:
                entries.append(Entry.from_json(item))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                skipped += 1
        entries.sort(key=lambda entry: entry.problem)
        table = Table(
            device=device,
            generator=str(obj["generator"]),
            compiler=str(obj["compiler"]),
            entries=tuple(entries),
            predictor=obj.get("predictor"),
            held_out_regret=obj.get("held_out_regret"),
            objective=_objective(obj.get("objective", FOR_TIME)),
            skipped=skipped,
        )
    except (KeyError, TypeError, AttributeError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"cannot be read ({error})"
        raise BadInput(f"the table {path} {what}: valid is one that `tileseek export table` made") from error
    if skipped:
        warnings.warn(f"{skipped} of {skipped + len(entries)} entries of {path} cannot be read", stacklevel=2)
    return table


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A schedule with all its measures of the policy that counts."""

    schedule: Schedule
    measures: Sequence[Measure]

    def middle(self, name: str) -> float | None:
        values = [value for measure in self.measures if (value := getattr(measure, name)) is not None]
        return statistics.median(values) if values else None

    def timed(self) -> Timed:
        time = self.middle("median_us")
        assert time is not None, "a correct measure has a time"
        return Timed(self.schedule, round(time, 4), _rounded(self.middle("ratio_to_ref")))


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The schedules of one problem, best first, and those that tie with the winner."""

    candidates: Sequence[_Candidate]
    tied: tuple[Schedule, ...]


def _runs(problem: Problem, device: Device, schedule: Schedule) -> bool:
    return not violations(problem, schedule, device)


def _ranked(
    measures: Sequence[Measure],
    objective: str,
    choose: Callable[..., Selection | None],
    runs: Callable[[Schedule], bool],
) -> _Ranking:
    """Those of final shoot-outs that run, with their winner first, then those that were screened only. Measures that
    say nothing about the objective do not count."""
    finals: dict[Schedule, list[Measure]] = defaultdict(list)
    screened: dict[Schedule, list[Measure]] = defaultdict(list)
    for measure in measures:
        (finals if is_final(measure) else screened)[measure.schedule].append(measure)
    finals = {schedule: group for schedule, group in finals.items() if runs(schedule)}
    selection = choose([measure for group in finals.values() for measure in group])
    cost_of = costs([measure for group in screened.values() for measure in group], objective)
    rest = [_Candidate(s, screened[s]) for s in sorted(cost_of, key=lambda s: (cost_of[s], s.name)) if s not in finals]
    if selection is None:
        return _Ranking(rest, ())
    order = sorted(selection.costs, key=lambda s: (s != selection.winner, selection.costs[s], s.name))
    return _Ranking([*(_Candidate(s, finals[s]) for s in order), *rest], selection.tied)


def _numerics(problem: Problem, schedule: Schedule, rel_error: float | None) -> dict[str, Any]:
    """How the bits of results come about; how sums are accumulated matters where operands have 8 bits."""
    found = {"class": schedule.numerics, "rel_error": rel_error}
    return {**found, "accumulate": problem.accumulate} if DTYPE_BYTES[problem.dtype] == 1 else found


def _entry(problem: Problem, ranking: _Ranking, runs: Callable[[Schedule], bool]) -> Entry | None:
    candidates = (candidate for candidate in ranking.candidates if runs(candidate.schedule))
    best = next(candidates, None)
    if best is None:
        return None
    alternates: dict[Schedule, Timed] = {}
    for candidate in candidates:
        if candidate.schedule.kernel != best.schedule.kernel:
            alternates.setdefault(candidate.schedule.kernel, candidate.timed())
        if len(alternates) == ALTERNATES:
            break
    timed = best.timed()
    policies = Counter(measure.policy for measure in best.measures)
    errors = [error for m in best.measures if isinstance(error := _check(m).get("norm"), float)]
    return Entry(
        problem=problem,
        schedule=best.schedule,
        median_us=timed.median_us,
        noise=round(_noise([time for measure in best.measures for time in measure.times_us]), 5),
        vs_cublas=timed.vs_cublas,
        vs_cublaslt_best=_rounded(best.middle("ratio_to_best")),
        alternates=tuple(alternates.values()),
        n_measured=len(ranking.candidates),
        numerics=_numerics(problem, best.schedule, max(errors, default=None)),
        policy=max(policies, key=lambda policy: (policies[policy], policy)),
        tied=tuple(schedule.name for schedule in ranking.tied),
        energy_mj=_rounded(best.middle("energy_mj")),
    )


def is_final(measure: Measure) -> bool:
    """Whether the measure comes from a final shoot-out."""
    return _of_final(measure.policy)


def _of_final(policy: str) -> bool:
    return policy_family(policy_name(policy)) == FINAL_POLICY


def _check(measure: Measure) -> Mapping[str, Any]:
    check = measure.raw.get("check")
    return check if isinstance(check, dict) else {}


def _finite(value: Any) -> float:
    """`value` as a number; raises ValueError for NaN and infinity."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not finite")
    return number


def _noise(times: Sequence[float]) -> float:
    if len(times) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / middle


def _of_device(env: Mapping[str, Any], device: Device) -> bool:
    try:
        return find_device(env["gpu"]) == device and "generator" in env and "compiler" in env
    except (BadInput, KeyError, AttributeError):
        return False


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _time(value: Any) -> float:
    time = float(value)
    if not 0 < time < math.inf:
        raise ValueError(f"{value!r} is not a time or a ratio")
    return time


def _ratio(value: Any) -> float | None:
    return None if value is None else _time(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def _objective(value: object) -> str:
    if value not in OBJECTIVES:
        raise TypeError(f"objective {value!r}")
    return str(value)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
