"""The configurations that Optuna proposes for a search by `tpe`.

Optuna keeps nothing from one proposal to the next: it gets the scores of all configurations anew each time, with a seed
that depends on their number. So an interrupted search continues with the proposals that it would have made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hpcps import seeds
from hpcps.records.search import ConfigurationScore
from hpcps.spec.search import TpeSearch, to_four_digits
from hpcps.spec.search_groups import SearchGroup

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def propose(group: SearchGroup, scores: Sequence[ConfigurationScore]) -> list[dict[str, Any]]:
    """Return the values, by dotted key, of the next configurations of a search by `tpe`; there may be equal ones.

    Args:
        group: the group; `to_propose` is the number of configurations.
        scores: those of all its configurations, in any order.
    """
    import optuna

    search = group.search
    assert isinstance(search, TpeSearch)
    space = {key: _distribution(values) for key, values in group.space.items()}
    seed = seeds.numbered(search.seed, "experiment", 0, "search/tpe")(search.startup + len(group.proposed))
    with _quiet():
        study = optuna.create_study(
            direction="maximize" if search.score == "accuracy" else "minimize",
            sampler=optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=0, constant_liar=True),
        )
        for score in sorted(scores, key=lambda score: score.place):
            values = group.configurations[score.place].values
            parameters = {key: _parameter(group.space[key], value) for key, value in values.items()}
            # As in the ranking, a configuration with a lost run is worse than all others.
            state, value = optuna.trial.TrialState.PRUNED, None
            if not score.lost:
                state = optuna.trial.TrialState.COMPLETE
                value = score.accuracy if search.score == "accuracy" else score.loss
            trial = optuna.trial.create_trial(state=state, value=value, params=parameters, distributions=space)
            # TPE would propose the same again and again if it did not learn that it did so.
            study.add_trials([trial] * max(1, group.proposed.count(values)))
        asked = [study.ask(space).params for _ in range(group.to_propose)]
    return [{key: _value(group.space[key], number) for key, number in params.items()} for params in asked]


def _distribution(values: Any) -> BaseDistribution:
    """Return the distribution of the values of a list or range; those of a list are known by their positions."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(values, list):
        return CategoricalDistribution(range(len(values)))
    low, high, log = values["low"], values["high"], values.get("log", False)
    return (IntDistribution if _is_whole(values) else FloatDistribution)(low, high, log=log)


def _parameter(values: Any, value: Any) -> Any:
    """Return what stands for a value in the distribution; a number that was rounded may be beyond an end."""
    return values.index(value) if isinstance(values, list) else min(max(value, values["low"]), values["high"])


def _value(values: Any, found: Any) -> Any:
    if isinstance(values, list):
        return values[found]
    return int(found) if _is_whole(values) else to_four_digits(found)


def _is_whole(values: Any) -> bool:
    return isinstance(values["low"], int) and isinstance(values["high"], int)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from reporting each study that it creates."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)
