"""The query: a table and a problem give the schedule to run, where it comes from, and what its launch needs."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import itemgetter, ne
from statistics import geometric_mean
from typing import TYPE_CHECKING

from ..cost_model.analytic import estimate_us
from ..space import BadInput, Device, Kind, Problem, Schedule, misfits, nearest, unsupported, violations
from .table import Entry, Table, place_of

if TYPE_CHECKING:
    from ..cost_model.predictor import Predictor

EXACT = "exact"
MODEL = "model"
NEAREST = "nearest"
ANALYTIC = "analytic"

SHORTLIST = 6
RUNNERS_UP = 2
"""Schedules of the nearest problems that the predictor chooses from, and how many an entry gives. More take longer, and
are not chosen more wisely."""

DRAFTED = 16
"""Schedules of the analytic model's draft that it chooses from as well. What wins depends on how tiles and shares of K
fill the SMs, which the nearest problem may do quite otherwise: with families held out (`tileseek bench search`) a
choice among the shortlist comes to 86 % of the best known, and with a draft of 16 to 98 %."""

CALIBRATING = 3
"""Entries of the nearest problems whose times say how far the predictor's are off there: with families held out
expected times are then off by 3.8 % in the median (`tileseek bench search`), without by 4.8."""

_MOST_CHOICES = 65536
"""Answers a table remembers before it starts afresh."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch takes: CTAs (one-dimensional, an upper bound where the device holds fewer clusters at once),
    threads of a CTA, CTAs of a cluster, bytes of dynamic shared memory, bytes of zeroed device memory."""

    grid: int
    block: int
    cluster: int
    smem: int
    workspace: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer to a query. The schedule is valid for the problem that was asked."""

    problem: Problem
    device: Device
    schedule: Schedule
    provenance: str
    """`exact`: tuned for this problem on this device class; `model`: ranked first by the predictor among the schedules
    of the nearest problems and the analytic model's draft; `nearest`: tuned for the nearest problem, `origin`, and
    where that is of another kind perhaps moved to the nearest valid schedule; `analytic`: by the analytic model
    alone."""
    expected_us: float
    """Microseconds a call: measured when `exact`, an estimate otherwise."""
    origin: Problem | None
    """The tuned problem that the schedule was taken from (`exact` and `nearest`)."""
    measured_on: str | None = None
    """Device class whose measurements `expected_us` rests on; None when it is the analytic model's alone."""

    @property
    def launch(self) -> Launch:
        """What its launch takes."""
        from ..codegen.plan import launch_plan

        plan = launch_plan(self.problem, self.schedule)
        resident = self.device.sm_count
        grid = plan.grid(resident // plan.cluster)
        return Launch(grid, plan.block, plan.cluster, plan.smem_bytes, plan.workspace_bytes(grid))

    @property
    def workspace(self) -> int:
        """Bytes of zeroed device memory that the launch needs; it leaves them zero."""
        return self.launch.workspace


def best_schedule(problem: Problem, table: Table, device: Device | None = None, quick: bool = False) -> Choice:
    """The schedule to run `problem` with on `device`, by default the one the table was tuned on.

    A problem that is not in the table takes some 50 milliseconds the first time, for a draft of schedules; `quick`
    goes by the nearest problems alone, in less than one, and is often far worse. On another device class the table's
    entries are no more than the nearest ones known, and a warning says so.

    Raises:
        BadInput: no schedule can run the problem on the device.
    """
    device = device or table.device
    known = table.choices.get((problem, device, quick))
    if known is not None:
        return known
    if device != table.device:
        warnings.warn(f"the table was tuned on {table.device.name}, asked is {device.name}", stacklevel=2)
    choice = _choose(problem, table, device, quick)
    if len(table.choices) >= _MOST_CHOICES:
        table.choices.clear()
    table.choices[problem, device, quick] = choice
    return choice


def _choose(problem: Problem, table: Table, device: Device, quick: bool) -> Choice:
    entry = _exact(problem, table) if device == table.device else None
    if entry is not None:
        return Choice(problem, device, entry.schedule, EXACT, entry.median_us, entry.problem, table.device.name)
    reasons = list(unsupported(problem, device))
    if reasons:
        raise BadInput("; ".join(reasons))
    return (
        _by_same_sizes(problem, table, device)
        or _by_model(problem, table, device, quick)
        or _by_nearest(problem, table, device)
        or _by_other_kind(problem, table, device)
        or _by_analysis(problem, device)
    )


def _exact(problem: Problem, table: Table) -> Entry | None:
    """The entry that was tuned for the problem. What won without the promise of a deterministic result and keeps it
    would have won with it."""
    entry = table.runnable.get(problem)
    if entry is None and problem.deterministic:
        entry = table.runnable.get(replace(problem, deterministic=False))
        if entry is not None and violations(problem, entry.schedule, table.device):
            return None
    return entry


def _by_model(problem: Problem, table: Table, device: Device, quick: bool) -> Choice | None:
    predictor = predictor_of(table)
    if predictor is None:
        return None
    entries = _nearest_first(problem, table)
    if not quick:
        entries = entries or _nearest_of_other_kinds(problem, table)
    candidates = _shortlist(problem, entries, device)
    if not quick:
        from ..cost_model.draft import draft

        candidates |= dict.fromkeys(draft(problem, device, DRAFTED))
    if not candidates:
        return None
    best, expected = predictor.best(problem, list(candidates), device)
    nearby = [entry for entry in entries if entry.problem in table.runnable][:CALIBRATING]
    off = geometric_mean([_off(table, entry.problem) for entry in nearby] or [1.0])
    return Choice(problem, device, best, MODEL, expected * off, None, table.device.name)


def _shortlist(problem: Problem, entries: Iterable[Entry], device: Device) -> dict[Schedule, None]:
    """The best schedules of the first entries that can run the problem."""
    found: dict[Schedule, None] = {}
    for entry in entries:
        found |= dict.fromkeys(s for s in entry.schedules[:RUNNERS_UP] if _runs(problem, s, device))
        if len(found) >= SHORTLIST:
            break
    return found


@functools.lru_cache(maxsize=4096)
def _off(table: Table, problem: Problem) -> float:
    """The time of an entry that can run over the predictor's; many problems are near the same few."""
    entry, predictor = table.runnable[problem], predictor_of(table)
    return entry.median_us / predictor.expected_us(problem, entry.schedule, table.device) if predictor else 1.0


@functools.lru_cache(maxsize=16)
def predictor_of(table: Table) -> Predictor | None:
    """The table's predictor; None when it has none, or with a warning one that is damaged or of another version: that
    is a miss, not an error."""
    if table.predictor is None:
        return None
    from ..cost_model.predictor import Predictor

    try:
        return Predictor.from_json(table.predictor, table.device)
    except BadInput as error:
        warnings.warn(f"the table's predictor is not used: {error}", stacklevel=2)
        return None


def _by_same_sizes(problem: Problem, table: Table, device: Device) -> Choice | None:
    """For another device, for a problem with overlap, or a deterministic one: what these change in which schedule is
    best is little, the sizes change much."""
    plain = replace(problem, deterministic=False) if problem.deterministic else problem
    same = dict.fromkeys((problem, plain, _alone(plain)))
    entries = [table.by_problem[known] for known in same if known in table.by_problem]
    return _from_entries(problem, entries, table, device)


def _by_nearest(problem: Problem, table: Table, device: Device) -> Choice | None:
    return _from_entries(problem, _nearest_first(problem, table), table, device)


def _nearest_first(problem: Problem, table: Table) -> list[Entry]:
    """The entries of the kinds whose schedules the problem can use, by `distance`. Sorting is stable: at equal distance
    the very kind is before its relatives."""
    m, n, k, batch = place_of(problem)
    found = [
        ((m - x) ** 2 + (n - y) ** 2 + (k - z) ** 2 + (batch - b) ** 2, entry)
        for kind in _kinds(problem)
        for (x, y, z, b), entry in table.by_kind.get(kind, ())
    ]
    found.sort(key=itemgetter(0))
    return [entry for _, entry in found]


def _by_other_kind(problem: Problem, table: Table, device: Device) -> Choice | None:
    """The nearest entry of another kind. A table that knows nothing of a kind still knows the sizes."""
    entries = _nearest_of_other_kinds(problem, table)[:1]
    if not entries:
        return None
    found = _from_entries(problem, entries, table, device)
    if found is not None:
        return found
    moved = nearest(entries[0].schedule.to_json(), problem, device)
    return Choice(problem, device, moved, NEAREST, estimate_us(problem, moved, device), entries[0].problem)


def _nearest_of_other_kinds(problem: Problem, table: Table) -> list[Entry]:
    """The entries of those kinds that differ in the fewest words, nearest first; none where the table knows the kind,
    whose kernels are its own."""
    own = problem.kind
    alone = own._replace(overlap="none")
    differing: dict[int, list[Kind]] = {}
    for kind in table.by_kind:
        # An overlap that only the problem has is no difference.
        asked = alone if kind.overlap == "none" else own
        differing.setdefault(sum(map(ne, asked, kind)), []).append(kind)
    if not differing or 0 in differing:
        return []
    here = place_of(problem)
    placed = itertools.chain.from_iterable(table.by_kind[kind] for kind in differing[min(differing)])
    return [entry for _, entry in sorted(placed, key=lambda pair: (math.dist(here, pair[0]), pair[1].problem))]


def _from_entries(problem: Problem, entries: Iterable[Entry], table: Table, device: Device) -> Choice | None:
    """The first schedule of the entries that is valid for the problem."""
    for entry in entries:
        for schedule in entry.schedules:
            if _runs(problem, schedule, device):
                # The entry's time tells how far the model is off for this schedule.
                off = entry.median_us / estimate_us(entry.problem, schedule, device)
                expected = off * estimate_us(problem, schedule, device)
                return Choice(problem, device, schedule, NEAREST, expected, entry.problem, table.device.name)
    return None


def _alone(problem: Problem) -> Problem:
    """The problem without overlap, whose entries count as the problem's own kind where it has none nearer."""
    return problem if problem.overlap == "none" else replace(problem, overlap="none")


def _runs(problem: Problem, schedule: Schedule, device: Device) -> bool:
    """Whether a schedule can run a problem that some can."""
    return not any(misfits(problem, schedule, device))


def _kinds(problem: Problem) -> Iterable[Kind]:
    """The kinds whose schedules a problem can use: its own, that without overlap, and that of a single product."""
    own = problem.kind
    alone = own._replace(overlap="none")
    return dict.fromkeys((own, alone, alone._replace(batched="")))


def _by_analysis(problem: Problem, device: Device) -> Choice:
    from ..cost_model.draft import analytic_best

    schedule = analytic_best(problem, device)
    return Choice(problem, device, schedule, ANALYTIC, estimate_us(problem, schedule, device), None)


def distance(a: Problem, b: Problem) -> float:
    """How far apart the sizes of two problems are: the root of the summed squared logarithms of their size ratios."""
    return math.dist(place_of(a), place_of(b))
