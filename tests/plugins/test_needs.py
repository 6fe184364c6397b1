"""Rules of a plugin get what they need: the same in one process, over MPI, and after an interruption."""

from pathlib import Path

import numpy as np
import pytest
from installed import BACKEND
from interrupted import model, play, play_through, records
from typed import hpcps

from hpcps.records.run_directory import RunDirectory
from hpcps.registry.plugins import PluginError, load
from hpcps.rules import Arrays, Context
from hpcps.spec.load import load_experiment

NEEDY = Path(__file__).with_name("needy.py")
BASE = f"""
name = "needy"
plugins = ["needy.py"]
model = {{ name = "mlp", backend = "{BACKEND}" }}
data = {{ name = "digits", limit = 320, test_limit = 100 }}
communication = {{ participation = 0.8, skip_rate = 0.2 }}
attack = {{ kind = "random", rate = 0.2 }}
checkpoint = {{ every = 1 }}
"""
SYNC = BASE + "train = { epochs = 4, batch_size = 16, local_steps = 2 }\n"
# Of one worker, nothing is left to chance.
ASYNC = BASE.replace("participation = 0.8", "participation = 1.0") + """
train = { mode = "async", epochs = 4, batch_size = 16, local_steps = 2 }
topology.workers = 1
[[sweep]]
"validation.rule.kind" = ["async_everything", "async_momentum"]
"""  # fmt: skip
VALIDATORS = SYNC + """
topology = { workers = 3, validators = 2, servers = 2 }
[[sweep]]
"validation.rule.kind" = ["momentum", "lowest", "everything"]
"""  # fmt: skip
SERVERS = SYNC + 'topology = { workers = 3, validators = 0 }\nvalidation.rule.kind = "momentum"\n'


def written(folder, text):
    (folder / "needy.py").write_text(NEEDY.read_text())
    file = folder / "experiment.toml"
    file.write_text(text)
    return file


@pytest.mark.thorough
@pytest.mark.parametrize("text", [VALIDATORS, SERVERS], ids=["validators", "servers"])
def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path, text):
    for point in load_experiment(written(tmp_path, text)).points:
        run, folder = point.run, tmp_path / point.label
        assert play(run, folder / "whole")
        play_through(run, folder / "cut", [300, 200] if run.topology.validators else [180, 70])
        assert any("continues" in line for line in records(folder / "cut", "server-0"))
        np.testing.assert_array_equal(model(folder / "cut"), model(folder / "whole"), err_msg=point.label)


def test_a_checkpoint_of_an_asynchronous_run_has_what_the_rule_keeps(tmp_path):
    run = load_experiment(written(tmp_path, ASYNC), ["train.epochs=10"]).points[-1].run
    assert run.validation.rule.kind == "async_momentum"
    checkpoints = RunDirectory(tmp_path).checkpoints

    def kept():
        state = checkpoints.read(checkpoints.positions()[0], "validator-0").state.part("rule")
        assert state.facts["names"] == ["mean", "updates"]
        draws = state.facts["streams"]["rule"]["state"]["counter"][0]
        return draws, int(state.arrays["1"])

    assert not play(run, tmp_path, crash_at=400)
    before = kept()
    assert min(before) > 8
    polls = iter(range(1000))
    assert not play(run, tmp_path, stop=lambda: next(polls) > 5)
    after = kept()
    assert all(before[i] <= after[i] < before[i] * 1.5 for i in range(2)), "it went on, and did not begin anew"
    assert play(run, tmp_path)


@pytest.mark.thorough
def test_the_loss_tells_good_updates_from_bad(tmp_path):
    text = VALIDATORS.replace('"random", rate = 0.2', '"negative", rate = 0.3')
    file = written(tmp_path, text.replace("epochs = 4", "epochs = 10").replace("limit = 320", "limit = 960"))
    accuracy = {}
    for rule in ("average", "lowest"):
        point = load_experiment(file, [f"validation.rule.kind={rule}"]).points[0]
        assert play(point.run, tmp_path / rule)
        lines = [line for line in records(tmp_path / rule, "validator-0") if line["event"] == "evaluation"]
        accuracy[rule] = lines[-1]["accuracy"]
    assert accuracy["lowest"] > 0.7
    assert accuracy["lowest"] > accuracy["average"] + 0.3


def test_a_validator_trains_only_for_a_reference(tmp_path, monkeypatch):
    from hpcps.training.build import trainer_of

    trained = []
    trainer = trainer_of(BACKEND, 1)
    train = trainer.train
    monkeypatch.setattr(
        trainer, "train", lambda self, *args, **more: trained.append(self) or train(self, *args, **more)
    )
    numbers = {}
    for point in load_experiment(written(tmp_path, VALIDATORS)).points:
        trained.clear()
        assert play(point.run, tmp_path / point.label)
        numbers[point.run.validation.rule.kind] = len(set(map(id, trained)))
    assert numbers == {"momentum": 3, "lowest": 3, "everything": 5}


def test_what_needs_a_loss_needs_a_validator(tmp_path):
    file = written(tmp_path, SYNC + 'topology.validators = 0\nvalidation.rule.kind = "lowest"\n')
    said = hpcps("check", file, expect=2)
    assert "lowest measures losses on a validator's data, but topology.validators = 0: use a validator" in said


DECLARATIONS = {
    'sees = "vektor"': """its granularity is 'vektor': it must be one of "coordinate", "block", "vector\"""",
    'needs = {"los"}': """its needs contains 'los': it may only contain "reference", "loss", "random", "state\"""",
    'needs = "loss"': 'its needs must be a set, such as `needs = frozenset({"loss"})`',
    'needs = {"state", "loss"}; sees = "block"': "it needs loss and state, which requires granularity = "
    '"vector", not "block"',
}  # fmt: skip


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_a_wrong_declaration_is_a_fault_of_the_class(declaration):
    text = "from typing import Literal\nfrom hpcps.rules import Rule\nclass Mine(Rule):\n"
    text += f'    "Mine."\n    kind: Literal["mine"] = "mine"\n    {declaration}\n    def aggregate(self, *_): ...\n'
    with pytest.raises(PluginError) as caught:
        load(text, Path("mine.py"))
    assert str(caught.value) == f"mine.py:3: Mine is not a usable rule: {DECLARATIONS[declaration]}"


def test_a_wrong_declaration_of_an_attack_is_one_too():
    for base, needs, says in (
        ("Attack", '{"honest"}', r"""its needs contains 'honest': it may only contain "own\""""),
        ("Omniscient", '{"model"}', r"its needs contains 'model': it may only contain"),
        ("Omniscient", '{"own"}', r"""its needs must contain "honest" or "rule": .* derives from Attack"""),
    ):
        text = f'from typing import Literal\nfrom hpcps.attacks import {base}\nclass Mine({base}):\n    "Mine."\n'
        text += f'    needs = {needs}\n    kind: Literal["mine"] = "mine"\n'
        text += "    def corrupt(self, *_): ...\n" if base == "Attack" else "    def craft(self, *_): ...\n"
        with pytest.raises(PluginError, match=f"mine.py:3: .* {says}"):
            load(text, Path("mine.py"))


def test_arrays_are_kept_as_copies_in_an_order_that_files_keep():
    arrays, mine = Arrays(), np.arange(6.0).reshape(2, 3).T
    arrays["a"] = mine
    mine[:] = 0
    assert arrays["a"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert arrays["a"].flags.c_contiguous
    arrays["n"] = 3
    arrays["n"] += 1
    assert (arrays["n"].shape, int(arrays["n"])) == ((), 4)
    kept = arrays.setdefault("m", mine)
    kept += 7
    assert arrays["m"][0, 0] == 7
    for name, wrong in (("x", [None]), (3, mine), ("x", {"a": 1})):
        with pytest.raises(TypeError, match="names must be strings, and values arrays of numbers"):
            arrays[name] = wrong


def test_a_rule_that_declares_no_state_cannot_lose_it(tmp_path):
    text = NEEDY.read_text().replace('frozenset({"state", "random"})', 'frozenset({"random"})')
    (tmp_path / "needy.py").write_text(text)
    file = tmp_path / "experiment.toml"
    file.write_text(SERVERS)
    said = hpcps("run", file, "--set", "transport.kind=inproc", "--results", tmp_path / "results", expect=2)
    assert 'a rule that keeps arrays must declare it: needs = frozenset({"state"})' in said


def test_outside_of_a_run_its_needs_are_arguments():
    (momentum, lowest, *_) = (entry.component() for entry in load(NEEDY.read_text(), NEEDY).entries)
    updates = np.array([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match="momentum needs random"):
        momentum(updates)
    context = Context(random=np.random.default_rng(1))
    first, second = momentum(updates, context=context), momentum(updates, context=context)
    assert first == pytest.approx([1, 1.5], abs=0.01)
    assert second == pytest.approx([1.5, 2.25], abs=0.01)
    assert lowest(updates, context=Context(loss=lambda update: -float(update.sum()))).tolist() == [3, 4]
