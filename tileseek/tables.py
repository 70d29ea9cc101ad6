"""Journals to a table with everything in it: entries, a trained predictor, and its regret on problems held out."""

from __future__ import annotations

from typing import Any

from .api import load_noise
from .heuristics.journal import JournalContents
from .heuristics.table import Table, build_table, current_measures
from .space import FOR_TIME, BadInput, Device


def make_table(contents: JournalContents, device: Device, objective: str = FOR_TIME) -> Table:
    """The table of `device`, tuned for `objective`, with the noise that was measured on it.

    The predictor is left out where too little was measured to train one, and for another objective than time, which it
    does not predict.

    Raises:
        BadInput: nothing in the journals was measured on `device`, or scikit-learn is not installed.
    """
    try:
        from .cost_model.ranker import train
        from .cost_model.regret import held_out_regret
    except ImportError as error:
        raise BadInput(f"making a table needs {error.name}: valid is an installation of tileseek[search]") from error

    measures = current_measures(contents, device) if objective == FOR_TIME else []
    predictor: dict[str, Any] | None = None
    regret: dict[str, Any] | None = None
    try:
        predictor = train(measures, device).to_json()
        held_out = held_out_regret(measures, device)
        regret = {
            "problems": len(held_out.per_problem),
            "geomean": round(held_out.mean, 5),
            "worst_decile": round(held_out.worst_decile, 5),
        }
    except BadInput:
        # Too few measures: queries then go by the nearest entry.
        pass
    return build_table(contents, device, predictor, regret, objective, load_noise(device))
