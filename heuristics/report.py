"""The report of a run: who won against cuBLAS and by how much, what is covered, what failed. Markdown."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..space import BOTTLENECKS, NamedProblem, Problem
from .journal import JournalContents
from .noise import QUANTITIES, Noise, Repeats, clock_repeats
from .table import Entry, Table, is_final, stale

_COUNTED = ("problems", "m", "n", "k")


def report(
    contents: JournalContents,
    table: Table,
    asked: Sequence[NamedProblem] = (),
    noise: Noise | None = None,
    suites: Mapping[str, Sequence[NamedProblem]] | None = None,
) -> str:
    """The report on a table, the journals it was made from, and what the device resolves, where that was measured.
    Problems go by their names in `asked`, whose absence it tells, or in the first of `suites` that has them, if any."""
    suites = suites or {}
    listed = [named for name in reversed(list(suites)) for named in suites[name]]
    names = {named.problem: named.name for named in (*listed, *asked)}
    parts = [
        f"# Matmul schedules for {table.device.name}",
        f"Generator {table.generator}, compiler {table.compiler}, tuned for {table.objective}."
        " Ratios are the other's time over ours, paired: above 1 tileseek is faster.",
        "## Against cuBLAS",
        _winners(table.entries, names),
        _summary(table.entries),
        *(["## By suite", rows] if (rows := by_suite(table, suites)) else []),
        "## Coverage",
        _coverage(table, asked),
        "## Measured",
        _counts(contents, table),
    ]
    if noise is not None and noise.resolvable:
        parts += ["## Smallest differences resolved", noise_table(noise)]
    if repeats := clock_repeats(measure for measure in contents.measures if is_final(measure)):
        parts += ["## Clocks under the power limit", _clocks(repeats)]
    return "\n\n".join(parts) + "\n"


def _clocks(repeats: Repeats) -> str:
    return (
        f"Clocks that schedules of a problem got in one final differ by {100 * repeats.difference:.2f} % (root mean"
        f" square). Of {repeats.pairs} pairs of finals in which the same two schedules met, the difference in one"
        f" correlates with that in the other by {repeats.correlation:.2f}."
    )


def some_of(names: Sequence[str], most: int = 12) -> str:
    """The first `most` names, and how many more there are."""
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def geomean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of the values that are there; None when there are none."""
    logs = [math.log(value) for value in values if value is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _winners(entries: Sequence[Entry], names: Mapping[Problem, str]) -> str:
    rows = [
        [
            names.get(entry.problem, entry.problem.key),
            f"{entry.median_us:.2f}",
            f"{100 * entry.noise:.1f} %",
            _ratio(entry.vs_cublas),
            _ratio(entry.vs_cublaslt_best),
            entry.policy,
            str(entry.n_measured),
            f"`{entry.schedule.name}`",
        ]
        for entry in entries
    ]
    header = ["problem", "us", "noise", "vs cuBLAS", "vs best cuBLASLt", "policy", "tried", "schedule"]
    return markdown_table(header, rows)


def _summary(entries: Sequence[Entry]) -> str:
    finals = [entry for entry in entries if entry.final]
    lines = []
    for name, ratios in (
        ("the cuBLAS default", [entry.vs_cublas for entry in finals]),
        ("the best cuBLASLt algorithm", [entry.vs_cublaslt_best for entry in finals]),
    ):
        known = [ratio for ratio in ratios if ratio is not None]
        faster = sum(ratio > 1 for ratio in known)
        lines.append(f"- against {name}: geometric mean {_ratio(geomean(known))}, faster on {faster} of {len(known)}")
    lines.append(
        f"- problems that count, for a final chose their schedule: {len(finals)};"
        f" listed only, for screens or races did: {len(entries) - len(finals)}"
    )
    return "\n".join(lines)


def by_suite(table: Table, suites: Mapping[str, Sequence[NamedProblem]]) -> str:
    """What the finals of each suite that has some come to, in the geometric mean: all, and by layout, type and rows.
    Empty where none has any."""
    rows = []
    for suite, problems in suites.items():
        groups: dict[tuple[str, str, int], list[Entry]] = {}
        for problem in dict.fromkeys(named.problem for named in problems):
            entry = table.by_problem.get(problem)
            if entry is not None and entry.final:
                band = bisect_left(_BANDS, problem.m)
                groups.setdefault((problem.layout, problem.dtype, band), []).append(entry)
        if groups:
            rows.append([suite, "all", "", "", *_finals([entry for group in groups.values() for entry in group])])
        if len(groups) > 1:
            for (layout, dtype, band), entries in sorted(groups.items()):
                rows.append([suite, layout, dtype, _band(band), *_finals(entries)])
    header = ["suite", "layout", "type", "m", "finals", "vs cuBLAS", "vs best cuBLASLt", "lowest", "highest"]
    return markdown_table(header, rows) if rows else ""


def _finals(entries: Sequence[Entry]) -> list[str]:
    """How many, their geometric means against cuBLAS and the best of cuBLASLt, and the extremes of the latter."""
    best = [entry.vs_cublaslt_best for entry in entries if entry.vs_cublaslt_best is not None]
    means = [geomean(entry.vs_cublas for entry in entries), geomean(best)]
    return [str(len(entries)), *map(_ratio, (*means, min(best, default=None), max(best, default=None)))]


_BANDS = (8, 32, 64, 128)
"""Numbers of rows up to which problems of a suite are counted together."""


def _band(band: int) -> str:
    low = _BANDS[band - 1] + 1 if band else 1
    return f"{low} to {_BANDS[band]}" if band < len(_BANDS) else f"from {low}"


def _coverage(table: Table, asked: Sequence[NamedProblem]) -> str:
    coverage = table.coverage()
    words = [name for name in coverage[0] if name not in _COUNTED] if coverage else []
    rows = [
        [
            *(row[name] for name in words),
            str(row["problems"]),
            *(f"{row[s][0]} to {row[s][1]}" for s in ("m", "n", "k")),
        ]
        for row in coverage
    ]
    text = markdown_table([*words, *_COUNTED], rows)
    missing = set(table.missing([named.problem for named in asked]))
    if missing:
        names = [named.name for named in asked if named.problem in missing]
        text += f"\n\nNot in the table, of {len(asked)} asked for: {some_of(names)}."
    return text


def _counts(contents: JournalContents, table: Table) -> str:
    measures = [*contents.compiles, *contents.measures]
    statuses = Counter(measure.status for measure in measures)
    pairs = len({(measure.problem, measure.schedule) for measure in contents.measures})
    lines = [f"- {status}: {count}" for status, count in sorted(statuses.items())]
    lines.append(f"- distinct (problem, schedule) pairs measured: {pairs}")
    lines.append(f"- pairs behind this table: {sum(entry.n_measured for entry in table.entries)}")
    for (generator, compiler), count in sorted(
        stale(contents, table.device, (table.generator, table.compiler)).items()
    ):
        lines.append(f"- stale, left out: {count} measured with generator {generator}, compiler {compiler}")
    tied = sum(bool(entry.tied) for entry in table.entries)
    lines.append(f"- problems whose winner ties with others: {tied}")
    discarded = sum(_count(measure.raw.get("discarded")) for measure in contents.measures)
    lines.append(f"- samples discarded because the state of the card had changed: {discarded}")
    lines.append(f"- journal lines skipped as unreadable: {contents.skipped}")
    return "\n".join(lines)


def noise_table(noise: Noise) -> str:
    """The smallest differences that each policy resolves, by kind of problem."""
    header = ["policy", *(f"{kind}: {quantity}" for kind in BOTTLENECKS for quantity in QUANTITIES)]
    rows = []
    for policy, kinds in sorted(noise.resolvable.items()):
        values = [kinds.get(kind, {}).get(quantity) for kind in BOTTLENECKS for quantity in QUANTITIES]
        rows.append([policy, *("-" if value is None else f"{100 * value:.2f} %" for value in values)])
    return markdown_table(header, rows)


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, without a line break at its end."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
