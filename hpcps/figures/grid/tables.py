"""The tables of a study as Markdown: the worst accuracies, and the ranking."""

from __future__ import annotations

import numpy as np

from hpcps.figures.curve import Range
from hpcps.figures.final import aligned_table
from hpcps.figures.grid.study import Study
from hpcps.figures.grid.worst import mark
from hpcps.records.acceptance import STALLED


def study_tables(study: Study) -> str:
    """Return the table of `study_rows` as Markdown, below a description of the runs."""
    heading = f"**{study.figure_data.experiment}**: final test accuracy (%) under the worst attack"
    facts = [heading, study.figure_data.facts, study.figure_data.remark]
    notes = ["score: the mean over the columns, [lowest–highest of the seeds]"] * (study.scores.shape[1] > 1)
    notes += ["*: some runs have no result yet; a score needs all runs"] * bool(study.incomplete.any())
    notes += [f"‡: with stalled runs ({STALLED})"] * bool(study.stalled.any())
    note = "; ".join(notes)
    table = aligned_table(study_rows(study))
    return "  \n".join(filter(None, facts)) + "\n\n" + table + "\n" + (f"\n{note}\n" if note else "")


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
