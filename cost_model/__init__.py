"""(problem, schedule, device) -> expected time: an analytic draft, and a ranker learned from journals.

`analytic`, `draft`, `features`, `forest` and `predictor` are pure Python; `ranker` and `regret` need scikit-learn.
"""
