"""What is wrong with the code of a rule or an attack is one error before anything starts."""

import re

import numpy as np
import pytest

from hpcps.attacks import AttackContext, Negative
from hpcps.cli.main import main
from hpcps.spec.load import load_experiment
from hpcps.training.trial import try_components

HEAD = """import sys
from typing import Literal
import numpy as np
from pydantic import Field
from hpcps.attacks import Attack, LabelAttack
from hpcps.rules import AsyncRule, Combined, Decision, Rule
"""
RULE = 'class Mine(Rule):\n    "Mine."\n    kind: Literal["mine"] = "mine"\n'
ASYNC = RULE.replace("Rule", "AsyncRule")
ATTACK = RULE.replace("Rule", "Attack")
AGGREGATE = RULE + "    def aggregate(self, updates, context):\n        "
COMBINE = RULE + "    def combine(self, updates, context):\n        "
DECIDE = ASYNC + "    def decide(self, update, context):\n        "
CORRUPT = ATTACK + "    def corrupt(self, block, context):\n        "
RELABEL = RULE.replace("Rule", "LabelAttack") + "    def relabel(self, labels, classes):\n        "
FILE = """name = "tried"
plugins = ["mine.py"]
topology.workers = 3
model.name = "mlp"
data.name = "digits"
train.epochs = 1
"""
WRONG = {
    "aggregate raises": (AGGREGATE + "return np.mediann(updates)", "line 11): its aggregate() failed: AttributeError"),
    "aggregate exits": (AGGREGATE + "sys.exit(0)", "line 11): its aggregate() failed: SystemExit: 0"),
    "nothing": (AGGREGATE + "pass", "line 10): its aggregate() returned None: it must return an array [1040]"),
    "a number": (AGGREGATE + "return updates.sum()", "line 10): its aggregate() returned a float32: it must return"),
    "a matrix": (AGGREGATE + "return updates", "line 10): its aggregate() returned an array [3, 1040] of float32: it"),
    "texts": (AGGREGATE + "return updates[0].astype(str)", "line 10): its aggregate() returned an array [1040] of <U"),
    "accepted": (
        AGGREGATE + "return updates[0], np.ones(2, bool)",
        "line 10): its aggregate() returned an array [2] of bool as accepted updates: it must be an array [3] or",
    ),
    "need": (AGGREGATE + "return updates[0] - context.reference", "line 11): its aggregate() failed: TypeError: unsup"),
    "state": (AGGREGATE + "context.state['x'] = 1", "line 11): its aggregate() failed: TypeError: a rule that keeps"),
    "combine raises": (COMBINE + "return updates.gone", "line 11): its combine() failed: AttributeError: 'Updates'"),
    "no Combined": (COMBINE + "return updates", "line 10): its combine() returned a Updates: it must return a"),
    "a wrong Combined": (
        COMBINE + "return Combined(np.zeros(3), True, updates.sent * 1.0)",
        "line 10): its combine() returned a Combined whose update is an array [3] of float64: it must be an array "
        "[1040]; a Combined whose accepted is an array [3, 2] of float64: it must be an array [3, 2] of bool",
    ),
    "decide raises": (DECIDE + "return context.gone", "line 11): its decide() failed: AttributeError: "),
    "no decision": (DECIDE + "pass", "line 10): its decide() returned None: it must return a hpcps.rules.Decision"),
    "weight raises": (
        DECIDE + "return Decision.accept(context.sent)\n    def weight(self, staleness):\n        return 1 / staleness",
        "line 13): its weight(0) failed: ZeroDivisionError: ",
    ),
    "corrupt raises": (CORRUPT + "block += self.bye", "line 11): its corrupt() failed: AttributeError: 'Mine' object"),
    "relabel raises": (RELABEL + "return self.bye", "line 11): its relabel() failed: AttributeError: 'Mine' object"),
    "other labels": (
        RELABEL + "return labels + 1",
        "line 10): its relabel() returned an array [32] of int64: it must return 32 whole numbers from 0 to 9",
    ),
    "no labels": (RELABEL + "pass", "line 10): its relabel() returned None: it must return 32 whole numbers from 0"),
    "not in place": (
        CORRUPT + "return block + 1",
        "line 10): its corrupt() returned an array [1024] of float32: it must change the block in place and return",
    ),
}  # fmt: skip


def written(folder, text, more=""):
    (folder / "mine.py").write_text(HEAD + text + "\n")
    table = "attack.kind" if "Attack)" in text else "validation.rule.kind"
    more += "attack.rate = 0.5\n" if "(LabelAttack)" in text else ""
    mode = 'train.mode = "async"\n' if "(AsyncRule)" in text else ""
    file = folder / "experiment.toml"
    file.write_text(FILE + f'{table} = "mine"\n{mode}{more}')
    return file


@pytest.mark.sample(8)
@pytest.mark.parametrize("case", WRONG)
def test_it_is_one_error_that_names_the_component(tmp_path, case, capsys):
    text, expected = WRONG[case]
    file = written(tmp_path, text)
    noun = "attack" if "Attack)" in text else "rule"
    commands = ["check", "run"] if case in ("aggregate exits", "corrupt raises") else ["check"]
    for command in commands:
        results = ["--results", str(tmp_path / "results")] if command == "run" else []
        assert main([command, str(file), *results]) == 2
        said = capsys.readouterr()
        assert said.err.startswith(f"hpcps: {noun} mine (plugin mine.py, {expected}"), said.err
        assert not said.out
        assert not (tmp_path / "results").exists() or not list(tmp_path.glob("results/*/runs"))


def test_a_rule_that_cannot_say_whether_it_is_able_is_a_mistake_in_the_file(tmp_path, capsys):
    file = written(
        tmp_path, RULE + "    def unable(self, n):\n        return self.bye\n" + AGGREGATE[len(RULE) :] + "pass"
    )
    assert main(["check", str(file)]) == 2
    expected = f"{file}:7: validation.rule: rule mine (plugin mine.py, line 11): its unable(3) failed: AttributeError"
    assert expected in capsys.readouterr().err


GOOD = {
    "one row": AGGREGATE + "return updates[0]",
    "a list": AGGREGATE + "return updates.mean(axis=0).tolist(), [True] * len(updates)",
    "zero": AGGREGATE + "return updates[0] / np.zeros(1)",
    "own number": AGGREGATE + "return np.array([.2, .3, .5]) @ updates",
    "skipped": AGGREGATE + "assert not updates[0, :1024].any() and updates[0, 1024:].all(); return updates[1]",
    "combine": COMBINE + "return Combined(updates.tile(slice(0, 1040))[0], True, updates.used)",
    "kept": AGGREGATE.replace("    def", "    needs = frozenset('reference loss random state'.split())\n    def", 1)
    + "context.state['n'] = 1; return updates[0] * context.loss(context.reference) + context.random.random()",
    "decision": DECIDE + "update *= 2; return Decision.accept(context.sent)",
    "in place": CORRUPT + "block += context.random.random()",
    "labels": RELABEL + "return labels[::-1] % classes",
    "changes": CORRUPT.replace("    def", "    needs = frozenset({'model'})\n    def", 1)
    + "block += context.model_change",
    "returned": CORRUPT + "block += 1; return block",
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", GOOD)
def test_a_good_one_passes_in_silence(tmp_path, case, capsys):
    assert main(["check", str(written(tmp_path, GOOD[case]))]) == 0
    assert not capsys.readouterr().err


def test_a_misspelt_method_is_a_fault_of_the_class(tmp_path, capsys):
    file = written(tmp_path, AGGREGATE.replace("aggregate", "agregate") + "return updates[0]")
    assert main(["check", str(file)]) == 2
    assert re.search(r"/mine.py:7: Mine is not a usable rule: it defines neither aggregate", capsys.readouterr().err)


def test_it_leaves_the_rule_of_the_run_and_its_streams_alone(tmp_path):
    text = "from functools import cached_property\n" + AGGREGATE.replace(
        "    def", "    @cached_property\n    def seen(self):\n        return []\n    def", 1
    )
    file = written(tmp_path, text + "self.seen.append(1); return updates[0] + len(self.seen)")
    experiment = load_experiment(file)
    (point,) = experiment.points
    before = point.run.model_dump_json(), np.random.get_state()[1].tolist()
    try_components([point.run])
    assert (point.run.model_dump_json(), np.random.get_state()[1].tolist()) == before
    assert "seen" not in vars(point.run.validation.rule)
    assert load_experiment(file).points[0].run_id == point.run_id


def test_each_rule_and_attack_of_a_sweep_is_tried_once(tmp_path):
    text = AGGREGATE.replace("    def", '    by: float = Field(1.0, description="By.")\n    def', 1)
    log = tmp_path / "log"
    text += f"open({str(log)!r}, 'a').write(f'{{self.by}} {{len(updates)}}\\n'); return updates[0]"
    more = (
        "[[sweep]]\nseed = [1, 2]\n[[sweep]]\nvalidation.rule.by = [1.0, 2.0]\n[[sweep]]\ntopology.workers = [3, 4]\n"
    )
    experiment = load_experiment(written(tmp_path, text, more))
    try_components(point.run for point in experiment.points)
    assert sorted(log.read_text().splitlines()) == ["1.0 3", "1.0 4", "2.0 3", "2.0 4"]


def test_what_one_process_without_workers_does_not_use_is_not_tried(tmp_path):
    file = written(tmp_path, AGGREGATE + "return gone")
    alone = ["topology={servers=0,validators=1,workers=0}", "data.shards=4"]
    try_components(point.run for point in load_experiment(file, alone).points)


def test_built_in_code_keeps_its_exceptions():
    class Broken(Negative):
        def corrupt(self, block, context):
            raise KeyError("x")

    with pytest.raises(KeyError):
        Broken().replace(np.ones(2, np.float32), AttackContext(np.random.default_rng(1)))
