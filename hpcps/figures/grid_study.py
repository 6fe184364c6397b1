"""A study of rules under attacks: final accuracies by rule, row, attack and seed, and their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcps.errors import RunError
from hpcps.figures.curve import Range, Values
from hpcps.figures.figure_data import FigureData, text
from hpcps.figures.final import described_table
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.labels import SEPARATOR, TOLERANCES, of_key, of_value, short_names
from hpcps.figures.options import PlotOptions, choose, refuse_unknown, with_left_out
from hpcps.records.acceptance import STALLED
from hpcps.records.bypass import COUNTS
from hpcps.records.bypass import EVENT as BYPASS
from hpcps.records.table import with_missing

_RULE, _ATTACK = "rule", "attack"


@dataclass(frozen=True)
class Study:
    """The results of one variant of an experiment that compares rules.

    Attributes:
        figure_data: describes the runs.
        rules: the names of the rules, in the order of the sweep.
        rows: the names of the rows: the values of the other swept keys.
        attacks: the names of the attacks.
        accuracy: final test accuracy in percent, `[rules, rows, attacks, seeds]`; NaN: no result.
        planned: whether the experiment has such a run, `[rules, rows, attacks, seeds]`; a sweep may leave some out.
        stalled: whether a run is stalled, `[rules, rows, attacks, seeds]`.
        entered: blocks by rule, attack and round, over all rows and seeds, with the columns `rule`, `attack`, `round`
            and `COUNTS`; empty if the records do not have them.
    """

    figure_data: FigureData
    rules: tuple[str, ...]
    rows: tuple[str, ...]
    attacks: tuple[str, ...]
    accuracy: NDArray[np.float64]
    planned: NDArray[np.bool_]
    stalled: NDArray[np.bool_]
    entered: pd.DataFrame

    @property
    def by_attack(self) -> Values:
        """The mean over the seeds, `[rules, rows, attacks]`."""
        return _mean(self.accuracy, 3)

    @property
    def worst(self) -> Values:
        """The accuracy under the worst attack, `[rules, rows]`: the lowest mean over the seeds."""
        return _lowest(self.by_attack, 2)

    @property
    def scores(self) -> Values:
        """The score of each rule with each seed, `[rules, seeds]`: the accuracy under the worst attack with that seed,
        as the mean over the rows; NaN if a run has no result.
        """
        found: Values = self.accuracy.min(axis=2).mean(axis=1)  # NaN stays NaN
        return found

    @property
    def incomplete(self) -> NDArray[np.bool_]:
        """Whether runs of a rule in a row have no result, `[rules, rows]`."""
        return np.asarray(self._lacks.any(axis=(2, 3)), np.bool_)

    @property
    def uncertain(self) -> NDArray[np.bool_]:
        """Whether runs of any rule under an attack have no result, `[rows, attacks]`: another rule may be best then."""
        return np.asarray(self._lacks.any(axis=(0, 3)), np.bool_)

    @property
    def _lacks(self) -> NDArray[np.bool_]:
        """Whether a planned run has no result, `[rules, rows, attacks, seeds]`."""
        return self.planned & np.isnan(self.accuracy)

    def worst_attack(self, rule: int, row: int) -> str:
        """Return the attack under which a rule is worst in a row; empty without a result, or with a single attack."""
        values = self.by_attack[rule, row]
        several = len(self.attacks) > 1 and not np.isnan(values).all()
        return self.attacks[int(np.nanargmin(values))] if several else ""

    @property
    def ranking(self) -> list[int]:
        """The rules from the best mean score to the worst."""
        return [int(rule) for rule in np.argsort(-np.nan_to_num(_mean(self.scores, 1), nan=-1.0), kind="stable")]


def is_grid(frame: pd.DataFrame) -> bool:
    """Tell whether the experiment of a table sweeps rules, attacks, and something else but the seed."""
    swept = set(frame.attrs.get("swept", []))
    return {_RULE, _ATTACK} < swept - {"seed"}


def studies_of(frame: pd.DataFrame) -> list[Study]:
    """Convert the table of `hpcps collect` to a study of each variant.

    Raises:
        RunError: the table has no evaluations, or its experiment does not sweep rules.
    """
    swept = [str(key) for key in frame.attrs.get("swept", [])]
    if _RULE not in swept:
        name, keys = frame.attrs.get("experiment"), ", ".join(swept) or "nothing"
        raise RunError(f"a grid compares rules, but {name} does not sweep validation.rule; it sweeps {keys}")
    inside = frame[frame["outside"].astype(str) == ""] if "outside" in frame else frame
    return [_study(inside[inside["variant"] == data.variant], data, swept) for data in figure_data_of(frame)]


def selected(study: Study, options: PlotOptions) -> Study:
    """Return a study with the rules (`lines`) and attacks (`panels`) that the options choose, in their order.

    Raises:
        RunError: there is no such rule or attack.
    """
    refuse_unknown({"line": (options.lines, study.rules), "panel": (options.panels, study.attacks)})
    rules, attacks = choose(study.rules, options.lines), choose(study.attacks, options.panels)
    places = [study.rules.index(rule) for rule in rules], [study.attacks.index(attack) for attack in attacks]
    kept = study.entered["rule"].isin(rules) & study.entered["attack"].isin(attacks)
    facts = with_left_out(study.figure_data.facts, rules=(rules, study.rules), attacks=(attacks, study.attacks))
    return replace(
        study,
        figure_data=replace(study.figure_data, facts=facts),
        rules=tuple(rules),
        attacks=tuple(attacks),
        accuracy=study.accuracy[places[0]][:, :, places[1]],
        planned=study.planned[places[0]][:, :, places[1]],
        stalled=study.stalled[places[0]][:, :, places[1]],
        entered=study.entered[kept],
    )


def _study(rows: pd.DataFrame, figure_data: FigureData, swept: Sequence[str]) -> Study:
    keys = [key for key in swept if key not in (_RULE, _ATTACK, "seed") and not key.startswith("validation.rule.")]
    evaluations = rows[rows["event"] == "evaluation"]
    last = evaluations.sort_values("epoch").groupby("run_id", observed=True).tail(1)
    missing = (facts for facts in rows.attrs.get("missing", ()) if facts.get("variant") == figure_data.variant)
    last = with_missing(last, [facts for facts in missing if not facts.get("outside")])
    last = last.sort_values("point", kind="stable") if "point" in last else last
    settings = pd.DataFrame({"row": _row_names(last, keys), "seed": last["seed"].to_numpy()}, last.index)
    beneath = {key.removeprefix("attack_").removeprefix("attack.") for key in keys if key.startswith("attack")}
    for column, left_out in ((_RULE, TOLERANCES), (_ATTACK, beneath)):
        texts = last[column].astype(object).map(text) if column in last else pd.Series("", last.index)
        names = short_names(list(dict.fromkeys(texts)), left_out, _clash(texts, settings))
        settings[column] = texts.map(names)
    # The accuracy of a run that has not ended is not comparable.
    ended = last["status"].astype(str).to_numpy() == "done" if "status" in last else np.ones(len(last), np.bool_)
    settings["accuracy"] = np.where(ended, 100 * last["accuracy"].to_numpy(np.float64), np.nan)
    settings["stalled"] = ended & (last["stalled"].to_numpy() > 0) if "stalled" in last else False
    settings["run_id"] = last["run_id"].astype(str).to_numpy()
    axes = {name: list(dict.fromkeys(settings[name])) for name in (_RULE, "row", _ATTACK)}
    axes["seed"] = sorted(settings["seed"].unique())
    accuracy = np.full([len(values) for values in axes.values()], np.nan)
    places = [settings[name].map({value: n for n, value in enumerate(axes[name])}) for name in axes]
    at = tuple(place.to_numpy(np.intp) for place in places)
    accuracy[at] = settings["accuracy"]
    planned = np.zeros(accuracy.shape, np.bool_)
    planned[at] = True
    stalled = np.zeros(accuracy.shape, np.bool_)
    stalled[at] = settings["stalled"]
    return Study(
        figure_data,
        tuple(axes[_RULE]),
        tuple(axes["row"]),
        tuple(axes[_ATTACK]),
        accuracy,
        planned,
        stalled,
        _entered(rows[rows["event"] == BYPASS], settings),
    )


def _clash(texts: pd.Series[Any], settings: pd.DataFrame) -> Any:
    """Return a function that tells whether two of some texts occur in the same row."""
    pairs = pd.DataFrame({"text": texts, "row": settings["row"]}).drop_duplicates()

    def clash(group: Sequence[str]) -> bool:
        return bool(pairs.loc[pairs["text"].isin(group), "row"].duplicated().any())

    return clash


def _row_names(rows: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """Return the name of the row of each run, such as `f = 3 · dirichlet`."""
    columns = [[_value_name(key, value, row) for value, row in zip(rows[key].astype(object), _facts(rows), strict=True)]
               for key in keys]  # fmt: skip
    return [SEPARATOR.join(values) for values in zip(*columns, strict=True)] if columns else [""] * len(rows)


def _facts(rows: pd.DataFrame) -> list[Mapping[str, Any]]:
    names = [name for name in ("attack_scope", "workers") if name in rows]
    return [dict(zip(names, values, strict=True)) for values in rows[names].astype(object).itertuples(index=False)]


def _value_name(key: str, value: object, facts: Mapping[str, Any]) -> str:
    if key == "attack_rate" and facts.get("attack_scope") == "worker" and isinstance(value, float | int):
        return f"f = {int(Decimal(repr(float(value))) * int(facts['workers']))} of {int(facts['workers'])}"
    word = text(value)
    return of_value(word) if isinstance(value, str) else f"{of_key(key)} {word}"


def _entered(rows: pd.DataFrame, settings: pd.DataFrame) -> pd.DataFrame:
    names = [*settings[[_RULE, _ATTACK]]]
    if rows.empty:
        return pd.DataFrame(columns=[*names, "round", *COUNTS])
    of_run = settings.set_index("run_id")
    ids = rows["run_id"].astype(str)
    known = pd.DataFrame({name: ids.map(of_run[name]) for name in names} | {"round": rows["round"].astype(np.int64)})
    known[[*COUNTS]] = rows[[*COUNTS]].astype(np.float64)
    # A run whose rule does not state which updates it accepts has no counts.
    known = known.dropna(subset=[*COUNTS])
    return known.groupby([*names, "round"], as_index=False, sort=False)[[*COUNTS]].sum()


def _mean(values: Values, axis: int) -> Values:
    known = np.ma.masked_invalid(values)
    return np.asarray(known.mean(axis=axis).filled(np.nan), np.float64)


def _lowest(values: Values, axis: int) -> Values:
    known = np.ma.masked_invalid(values)
    return np.asarray(known.min(axis=axis).filled(np.nan), np.float64)


def study_tables(study: Study) -> str:
    """Return the table of `study_rows` as Markdown, below a description of the runs."""
    notes = ["score: the mean over the columns, [lowest–highest of the seeds]"] * (study.scores.shape[1] > 1)
    notes += ["*: some runs have no result yet; a score needs all runs"] * bool(study.incomplete.any())
    notes += [f"‡: with stalled runs ({STALLED})"] * bool(study.stalled.any())
    what = "final test accuracy (%) under the worst attack"
    return described_table(study.figure_data, what, study_rows(study), "; ".join(notes))


def mark(study: Study, rule: int, row: int) -> str:
    """Return an asterisk for a cell with results of some of its runs only, and a sign for one with stalled runs."""
    signs = "*" if study.incomplete[rule, row] and not np.isnan(study.worst[rule, row]) else ""
    return signs + (" ‡" if study.stalled[rule, row].any() else "")


def study_rows(study: Study) -> list[list[str]]:
    """Return the score of each rule with its range over the seeds, and its accuracy under the worst attack by row.

    The first row is the head; the others are the rules from the best to the worst.
    """
    scores = Range.of(study.scores.T)
    rows = [["rule", "score", *(row or "worst" for row in study.rows)]]
    for rule in study.ranking:
        score = "–" if np.isnan(scores.mean[rule]) else f"{scores.mean[rule]:.1f}"
        if scores.low[rule] < scores.high[rule]:
            score += f" [{scores.low[rule]:.1f}–{scores.high[rule]:.1f}]"
        cells = []
        for row, value in enumerate(study.worst[rule]):
            attack = f"{study.worst_attack(rule, row)}{mark(study, rule, row)}"
            cells.append("–" if np.isnan(value) else f"{value:.1f} {attack}".rstrip())
        rows.append([study.rules[rule], score, *cells])
    return rows
