"""What is known before a run: the start of a search and of a survey."""

from __future__ import annotations

from ..cost_model.costs import by_problem
from ..heuristics.journal import Journal, JournalContents, Measure, read_journal
from ..space import FOR_TIME, Problem
from .runner import Runner


def known_before(
    runner: Runner, journal: Journal | None, history: JournalContents | None, objective: str = FOR_TIME
) -> tuple[JournalContents, dict[Problem, list[Measure]]]:
    """The history, by default what the journal holds, and of it what was made under the runner's environment by runs
    with the same objective, compile failures included: that is not made again. The journal is told of an environment
    that is new to the history."""
    if history is None:
        history = read_journal(journal.path) if journal is not None else JournalContents()
    if journal is not None and runner.env_key not in history.envs:
        journal.append({"kind": "env", "env": runner.env_key, **runner.env})
    measures = [*history.measures, *history.compiles]
    own = by_problem(m for m in measures if m.env == runner.env_key and m.objective == objective)
    return history, own
