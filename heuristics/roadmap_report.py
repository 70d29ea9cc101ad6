"""The road map's document as Markdown: each choice on and off, and what every kernel does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from ..space import Problem, follows_clock
from .noise import UNMEASURED
from .report import markdown_table

Row = Mapping[str, Any]

_QUANTITY = {"ratio": "time", "ratio_cycles": "cycles"}

_HOW = f"""\
Each line compares two kernels that differ in one choice, and where the rules do not allow that in what is named as
well. Both ran in the same rounds of one race, with cuBLAS in between. *Time*, *cycles* and *energy* (of the board, for
one call) are off over on: **above 1 the choice helps**. The first two are medians of paired rounds with their 95 %
intervals. Where power limits the clock (*limited*) and tensor cores take longer than memory cycles decide, for time
scatters ten times more; elsewhere time does. Differences below {100 * UNMEASURED["time"]:g} % of time or
{100 * UNMEASURED["cycles"]:g} % of cycles are none. Base schedules are those of the table for the problem."""


def roadmap_report(document: Mapping[str, Any]) -> str:
    """The report of a document that `tileseek roadmap` made."""
    env = document["env"]
    groups = _groups(document["pairs"])
    parts = [
        f"# The road map on {env.get('gpu', 'a GPU')}",
        f"Written by `{document['command']}` on {document['date'][:10]}, generator {env.get('generator')},"
        f" driver {env.get('driver')}, compiler {env.get('compiler')}, policy `{document['policy']['key']}`.",
        _HOW,
        "## At a glance",
        markdown_table(
            ["row", "choice", "helps", "same", "hurts", "best", "worst"], [_glance(group) for group in groups]
        ),
        "## Choices",
        *(_group(group) for group in groups),
    ]
    if document["impossible"]:
        lines = [f"- {each['row']}, {each['choice']}, {each['problem_name']}: {each['reason']}" for each in
                 document["impossible"]]  # fmt: skip
        parts += ["## Not possible with today's table", "\n".join(lines)]
    invariants = document["invariants"]
    parts += [
        "## Invariants",
        f"What every kernel does. Numbers are over {invariants['kernels']} kernels: those above, and random ones of the"
        f" whole space; {len(invariants['rejected'])} more were rejected by the audit and are never measured.",
        markdown_table(
            ["row", "wish", "proved by", "numbers"],
            [
                [each["row"], each["wish"], each["check"], ", ".join(f"{k} {v}" for k, v in each["facts"].items())]
                for each in invariants["rows"]
            ],
        ),
    ]
    if invariants["rejected"]:
        parts.append("\n".join(f"- `{name}`: {reason}" for name, reason in invariants["rejected"].items()))
    return "\n\n".join(parts) + "\n"


def verdict(row: Row) -> str:
    """`helps`, `hurts` or `same`, by the interval of what decides and by what measuring resolves; empty where it was
    not measured."""
    name = _decides(row)
    interval, margin = row["ci95"][name], UNMEASURED[_QUANTITY[name]]
    if interval is None:
        return ""
    if interval[0] > 1 and row[name] > 1 + margin:
        return "helps"
    return "hurts" if interval[1] < 1 and row[name] < 1 - margin else "same"


def _decides(row: Row) -> str:
    by_cycles = row["power_limited"] and follows_clock(Problem.from_json(row["problem"]))
    return "ratio_cycles" if by_cycles else "ratio"


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    def title(row: Row) -> tuple[str, str]:
        return row["row"], row["choice"]

    return [list(group) for _, group in groupby(rows, title)]


def _glance(rows: Sequence[Row]) -> list[str]:
    verdicts = [verdict(row) for row in rows]
    known = [row for row in rows if row[_decides(row)] is not None]
    ordered = sorted(known, key=lambda row: row[_decides(row)])
    ends = [f"{row[_decides(row)]:.3f} ({_changes(row['on'])}, {row['problem_name']})" for row in ordered]
    counts = [str(verdicts.count(word)) for word in ("helps", "same", "hurts")]
    return [rows[0]["row"], rows[0]["choice"], *counts, ends[-1] if ends else "-", ends[0] if ends else "-"]


def _group(rows: Sequence[Row]) -> str:
    header = [
        "problem",
        "on",
        "off",
        "time",
        "cycles",
        "energy",
        "limited",
        "us",
        "verdict",
        "also differs",
        "on",
    ]
    table = markdown_table(
        header,
        [
            [
                row["problem_name"],
                _changes(row["on"]),
                _changes(row["off"]),
                _ratio(row, "ratio"),
                _ratio(row, "ratio_cycles"),
                _number(row["ratio_energy"], 3),
                "yes" if row["power_limited"] else "no",
                _number(row["on"]["us"], 2),
                verdict(row) or _failure(row),
                row["adjusted"] or "-",
                f"`{row['on']['schedule']}`",
            ]
            for row in rows
        ],
    )
    return f"### {rows[0]['row']}: {rows[0]['choice']}\n\n{rows[0]['why']}\n\n{table}"


def _changes(side: Row) -> str:
    return ", ".join(f"{name} {value if value != '' else 'none'}" for name, value in side["changes"].items())


def _failure(row: Row) -> str:
    words = [f"{name}: {row[name]['status']} {row[name]['reason']}".strip() for name in ("on", "off")
             if row[name]["status"] != "correct"]  # fmt: skip
    return "; ".join(words) or "not paired"


def _ratio(row: Row, name: str) -> str:
    interval = row["ci95"][name]
    return "-" if interval is None else f"{row[name]:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
