"""Evaluates the rules and attacks of hpcps on the common inputs."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comparison.inputs import Input, Rows
from comparison.pair import SEED, Pair, values
from hpcps.attacks.omniscient import Omniscient
from hpcps.errors import SpecError
from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Updates
from hpcps.registry import installed
from hpcps.rules import Arrays, AsyncContext, AsyncRule, Context, TrimmedMean, combine_finite
from hpcps.rules.preaggregation import mixture

Result = NDArray[np.float64] | str
"""The result, or why there is none."""


def result(kind: str, name: str, keys: dict[str, Any], each: Input, form: str) -> Result:
    """Return the result of a component on an input."""
    try:
        component = installed().of(kind)[name](**keys)
    except (SpecError, ValueError) as error:
        return str(error).splitlines()[0]
    if kind == "attacks":
        return _attack(component, each, form)
    if kind == "preaggregators":
        return _rows(component, each)
    if isinstance(component, AsyncRule):
        return _decisions(component, each)
    return _combined(component, each, form)


def of_pair(kind: str, pair: Pair, each: Input) -> Result:
    """Return our result of a pair on an input."""
    return result(kind, pair.component, values(pair.ours, each), each, pair.form)


def moments(numbers: Rows) -> Rows:
    """Return the mean, the standard deviation, and the share beyond two standard deviations."""
    deviation = numbers.std()
    return np.array([numbers.mean(), deviation, (np.abs(numbers) > 2 * deviation).mean()])


def _combined(rule: Any, each: Input, form: str) -> Result:
    """Combine as a round does, also fewer updates than the rule's `bound`: the libraries have other bounds."""
    rows, reference = (each.rows[1:], each.rows[0]) if form == "reference" else (each.rows, each.rows.mean(axis=0))
    target = each.rows[-1]
    if reason := rule.refusal(len(rows), bounds=False):
        return reason
    layout = Layout.of_sizes((rows.shape[1],), rows.shape[1])
    context = Context(
        reference.astype(np.float32),
        loss=lambda update: float(((update - target) ** 2).sum()),
        random=np.random.default_rng(SEED),
        state=Arrays(),
    )
    for factor in (1.0, -0.5) if form == "twice" else (1.0,):
        updates = Updates.of((factor * rows).astype(np.float32), layout)
        found = combine_finite(rule, updates, context)[0].update.astype(np.float64)
    return found


def _decisions(rule: AsyncRule, each: Input) -> Result:
    """Return what the rule adds to the model, of one update after another."""
    layout, changed = Layout.of([("0", (each.rows.shape[1],))]), []
    state, random = Arrays(), np.random.default_rng(SEED)
    reference = each.rows.mean(axis=0).astype(np.float32)
    for row in each.rows:
        update = row.astype(np.float32)
        if not np.isfinite(update).all():
            continue
        context = AsyncContext(reference, None, random, state, layout=layout, sent=np.ones(1, np.bool_))
        decision = rule.checked_decision(update, context)
        changed.append(update * decision.applied[0])
    return np.concatenate(changed or [np.zeros(0)]).astype(np.float64)


def _rows(stage: Any, each: Input) -> Result:
    """Return the rows that a pre-aggregator makes of the finite rows; others count as zero."""
    rows = np.where(np.isfinite(each.rows).all(axis=1)[:, None], each.rows, 0.0)
    f = stage.byzantine(each.n, None)
    if reason := stage.unable(each.n, f):
        return str(reason)
    updates = Updates.of(rows.astype(np.float32), Layout.of_sizes((rows.shape[1],), rows.shape[1]))
    mixed = mixture([(stage, f)], updates, np.random.default_rng(SEED))
    return np.asarray(mixed.mixing[0] @ rows)


def _attack(attack: Any, each: Input, form: str) -> Result:
    random, b = np.random.default_rng(SEED), each.attackers
    try:
        if form == "moments":
            return moments(attack(np.ones(20_000), random=random))
        if not isinstance(attack, Omniscient):
            model = {"model_change": each.rows[-1]} if "model" in attack.needs else {}
            return np.asarray(attack(each.rows[0], random=random, **model))
        rule = TrimmedMean(trim=ceil(1000 * b / (each.n + b)) / 1000) if "rule" in attack.needs else None
        return np.asarray(attack(each.rows, own=each.rows[:b], f=b, random=random, rule=rule))
    except (SpecError, ValueError) as error:
        return str(error).splitlines()[0]
