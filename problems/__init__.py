"""Named problem suites."""

from __future__ import annotations

from pathlib import Path

from ..space import BadInput, NamedProblem, read_suite, shown

FOLDER = Path(__file__).parent


def suite_names() -> list[str]:
    """The suites that come with tileseek."""
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


def suite(name: str) -> list[NamedProblem]:
    """The problems of a bundled suite.

    Raises:
        BadInput: there is no such suite.
    """
    if name not in suite_names():
        raise BadInput(
            f"problem suite is {shown(name)}: valid are {', '.join(suite_names())}, or the path of a CSV file"
        )
    return read_suite(FOLDER / f"{name}.csv")
