"""The page that compares our rules and attacks with those of other libraries is what was measured, and still holds."""

import json
import re
from contextlib import suppress

import numpy as np
import pytest
from comparison.inputs import Input, all_inputs, digest
from comparison.libraries import LIBRARIES
from comparison.measured import fingerprints
from comparison.ours import result
from comparison.pairs import PAIRS
from generate import rules

from hpcps.registry import installed
from hpcps.rules import Context

AGAIN = "run `make peers`, and read what changed in docs/rules.md"


@pytest.fixture(scope="module")
def data():
    return json.loads(rules.DATA.read_text(encoding="utf-8"))


def test_the_page_is_what_was_measured(data):
    assert rules.PAGE.read_text(encoding="utf-8") == rules.page(data), "run docs/generate/rules.py"


def test_every_rule_and_attack_is_compared(data):
    compared = {tuple(line.split()[:2]) for line in data["ours"]}
    there = {(kind, name) for kind in PAIRS for name in installed().of(kind)}
    assert compared == there, AGAIN
    page = rules.PAGE.read_text(encoding="utf-8")
    assert [name for _, name in there if f"### `{name}`\n" not in page] == []


def test_every_pair_was_measured(data):
    for kind, pairs in PAIRS.items():
        assert len({pair.id for pair in pairs}) == len(pairs)
        assert {pair.id for pair in pairs} == set(data["pairs"][kind]), AGAIN
    assert {name: library.version for name, library in LIBRARIES.items()} == {
        name: each["version"] for name, each in data["libraries"].items()
    }, AGAIN


@pytest.mark.thorough
def test_our_results_are_those_that_were_compared(data):
    inputs, step = all_inputs(), 4
    assert digest(inputs) == data["inputs"]["digest"], AGAIN
    inputs = inputs[::step]
    ours, changed = fingerprints(inputs), []
    assert set(ours) == set(data["ours"]), AGAIN
    for line, recorded in data["ours"].items():
        for each, was, now in zip(inputs, recorded["numbers"][::step], ours[line]["numbers"], strict=True):
            if (was is None) != (now is None) or (was is not None and abs(was - now) > 1e-3):
                changed.append(f"{line}: {each.name}: {was} -> {now}")
    assert changed == [], AGAIN


def test_the_page_says_where_a_call_of_hpcps_is_refused():
    """Each shown input of a rule, as one would call it: `computes` only if it does."""
    page, shown = rules.PAGE.read_text(encoding="utf-8"), 0
    for name, rule in installed().of("rules").items():
        section = page.partition(f"### `{name}`\n")[2].partition("\n### ")[0]
        for line in re.findall(r"^- .* and f = \d+, hpcps with `f = f` .*$", section, re.MULTILINE):
            rows = np.array(
                [eval(row) for row in re.findall(r"`(\([^`]*\))`", line.partition(": for ")[2].partition(" and f")[0])]
            )
            f, context = int(re.search(r"and f = (\d+)", line)[1]), Context(rows[0].astype(np.float32))
            with suppress(ValueError):
                rule(f=f)(rows.astype(np.float32), context=context)
                assert "hpcps with `f = f` computes " in line
                continue
            with pytest.raises(ValueError, match=r"needs at least") as refusal:
                rule(f=f)(rows.astype(np.float32), context=context)
            assert f"hpcps with `f = f` refuses them ({refusal.value})" in line
            shown += 1
    assert shown >= 5


def test_the_note_on_ties_of_monna_is_what_hpcps_computes():
    rows = [[1, 0, 0], [0, 1, -1], [0, -1, 1], [1, 1, 1], [1, 1, 1], [1, -1, 1]]
    page = rules.PAGE.read_text(encoding="utf-8")
    assert f"for n = 6 updates {', '.join(f'`({x}, {y}, {z})`' for x, y, z in rows)} and f = 1, hpcps computes " in page
    each = Input("note", "ties", np.array(rows, np.float64), 1)
    assert result("rules", "monna", {"f": 1}, each, "reference") == pytest.approx(np.array([0.8, 0.4, 0.4]))
    assert "`(0.8, 0.4, 0.4)`, ByzFL" in page
