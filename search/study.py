"""A search as Optuna studies in a database, for optuna-dashboard to show: a view of the journal, never the truth."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import optuna
from sqlalchemy.exc import SQLAlchemyError

from ..cost_model.costs import by_problem
from ..heuristics.journal import Measure
from ..space import BadInput, Problem
from .sampler import trial_of


class StudyView:
    """Writes a study for each problem into the database at `url`.

    A trial is a measurement: its value is microseconds of a call, its attributes are status, name of the schedule and
    the ratio to cuBLAS.

    Raises:
        BadInput: there is no database at `url`, and none can be made.
    """

    def __init__(self, url: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._studies: dict[Problem, optuna.Study] = {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._storage = optuna.storages.RDBStorage(url)
        except (SQLAlchemyError, ImportError, ValueError) as error:
            raise BadInput(f"storage is {url!r}, which cannot be used: valid is such as sqlite:///study.db") from error

    def begin(self, problems: Iterable[Problem], known: Iterable[Measure] = ()) -> None:
        """Show what is `known` of the problems. A study that is there is written anew."""
        groups = by_problem(known)
        there = set(optuna.get_all_study_names(self._storage))
        for problem in problems:
            if problem.key in there:
                optuna.delete_study(study_name=problem.key, storage=self._storage)
            study = optuna.create_study(study_name=problem.key, storage=self._storage, direction="minimize")
            study.add_trials([_trial(m) for m in groups.get(problem, ())])
            self._studies[problem] = study

    def add(self, measure: Measure) -> None:
        """Show one more measurement."""
        self._studies[measure.problem].add_trial(_trial(measure))


def _trial(m: Measure) -> optuna.trial.FrozenTrial:
    value = m.median_us if m.status == "correct" else None
    attributes = {"schedule": m.schedule.name, "status": m.status, "vs_cublas": m.ratio_to_ref}
    return trial_of(m.schedule, value, attributes)
