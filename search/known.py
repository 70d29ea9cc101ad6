"""What is known before a run: the start of a search and of a survey."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cost_model.costs import by_problem
from ..heuristics.journal import Journal, JournalContents, Measure, of_today, read_journal
from ..space import FOR_TIME, Problem
from .runner import Runner


def known_before(
    runner: Runner, journal: Journal | None, history: JournalContents | None, objective: str = FOR_TIME
) -> tuple[JournalContents, dict[Problem, list[Measure]]]:
    """The history, by default what the journal holds, and of it what was made under the runner's environment by runs
    with the same objective, compile failures included: that is not made again. An older generator is the same
    environment for kernels that it made as today's does. The journal is told of an environment that is new to the
    history."""
    if history is None:
        history = read_journal(journal.path) if journal is not None else JournalContents()
    if journal is not None and runner.env_key not in history.envs:
        journal.append({"kind": "env", "env": runner.env_key, **runner.env})
    here = _but_generator(runner.env)
    envs = {key: env for key, env in history.envs.items() if _but_generator(env) == here}
    generator = str(runner.env.get("generator"))
    own = of_today([*history.measures, *history.compiles], {**envs, runner.env_key: runner.env}, generator)
    return history, by_problem(measure for measure in own if measure.objective == objective)


def _but_generator(env: Mapping[str, Any]) -> dict[str, Any]:
    """What results of two environments have to share, beside the kernel: GPUs of one class count as one."""
    return {name: value for name, value in env.items() if name not in ("generator", "uuid")}
