"""`[[exclude]]` and `[[include]]`: which points they take away and add, and what they may not say."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcps.errors import SpecError
from hpcps.spec.load import load_experiment

Write = Callable[..., Path]

SWEEP = """
[[sweep]]
"validation.rule" = [{ kind = "average" }, { kind = "zeno", rho = 0.1 }]
[[sweep]]
attack = [{ kind = "none" }, { kind = "negative", scale = 6 }, { kind = "random" }]
"""


def names(path: Path, *overrides: str) -> list[str]:
    return [point.label for point in load_experiment(path, overrides).points]


ALL = [f"{rule} · {attack}" for rule in ("average", "zeno") for attack in ("none", "negative 6", "random 1")]


@pytest.mark.parametrize(
    ("exclude", "out"),
    [
        ('"attack.kind" = "none"', {"average · none", "zeno · none"}),
        ('attack.kind = "none"', {"average · none", "zeno · none"}),
        ('attack = "none"', {"average · none", "zeno · none"}),
        ('attack = { kind = "negative", scale = 6.0 }', {"average · negative 6", "zeno · negative 6"}),
        ('"attack.scale" = 1', {"average · random 1", "zeno · random 1"}),  # a default of its kind
        ('"attack.kind" = ["none", "random"]\n"validation.rule" = "zeno"', {"zeno · none", "zeno · random 1"}),
        ('"validation.rule.rho" = 0.1\nattack = ["none", { kind = "random" }]', {"zeno · none", "zeno · random 1"}),
        ('seed = 1\n"train.lr_decay.epochs" = []\nattack = "none"', {"average · none", "zeno · none"}),  # defaults
        ('"validation.evaluate" = "global_model"\nattack = "none"', {"average · none", "zeno · none"}),  # a preset's
        ('topology = { workers = 4 }\nattack = "none"', {"average · none", "zeno · none"}),
    ],
)
def test_what_fits_all_of_an_exclusion_is_left_out(write: Write, exclude: str, out: set[str]) -> None:
    points = load_experiment(write(f"{SWEEP}[[exclude]]\n{exclude}")).points
    assert [point.label for point in points] == [label for label in ALL if label not in out]
    assert [point.index for point in points] == list(range(len(ALL) - len(out)))


def test_any_of_several_exclusions_leaves_out(write: Write) -> None:
    path = write(f'{SWEEP}[[exclude]]\nattack = "none"\n[[exclude]]\nattack = "random"')
    assert names(path) == ["average · negative 6", "zeno · negative 6"]


def test_a_point_that_is_left_out_need_not_be_right(write: Write) -> None:
    path = write(
        '[[sweep]]\n"topology.validators" = [0, 1]\n[[sweep]]\nvalidation.rule = [{kind="average"}, {kind="zeno"}]'
    )
    with pytest.raises(SpecError, match=r"topology\.validators = 0"):
        load_experiment(path)
    path.write_text(path.read_text() + '\n[[exclude]]\n"topology.validators" = 0\n"validation.rule" = "zeno"')
    assert names(path) == ["validators 0 · average", "validators 1 · average", "validators 1 · zeno"]


def test_an_exclusion_sees_what_is_set_and_need_not_fit_what_that_leaves(write: Write) -> None:
    path = write(f'{SWEEP}[[exclude]]\nattack = "none"\n"validation.rule" = "zeno"')
    assert names(path, 'attack={kind = "random"}') == ["average", "zeno"]
    assert names(path, 'attack={kind = "none"}') == ["average"]
    with pytest.raises(SpecError, match="every point of the sweep is excluded"):
        load_experiment(path, ['attack={kind = "none"}', "validation.rule={kind = 'zeno'}"])


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            '[[exclude]]\n"attack.kind" = "randon"',
            '17: exclude[0].attack.kind: no point of the sweep has attack.kind = "randon": it is "none", "negative", '
            '"random"',
        ),
        (
            '[[exclude]]\nattack = "none"\n\n[[exclude]]\n"attack.scale" = 6\nattack.kind = "random"',
            "19: exclude[1]: no point of the sweep has all of these values: correct or remove the table",
        ),
        (
            "[[exclude]]\ntrain.device = 1",
            "17: exclude[0].train.device: no point of the sweep has train.device = 1",
        ),
        (
            '[[exclude]]\n"atack.kind" = 1',
            "17: exclude[0].atack.kind: unknown key atack.kind: did you mean attack",
        ),
        ("[[exclude]]", "16: exclude[0]: an empty [[exclude]]: give it keys"),
        ("[[exclude]]\nseed = 1", "16: exclude: every point of the sweep is excluded: nothing is left to run"),
        ("[[include]]", "16: include[0]: an empty [[include]]: give it the keys"),
        ("[[include]]\nlabel = 3\nseed = 2", "17: include[0].label: expects a text, got 3"),
        ("[[include]]\nname = 'other'", "17: include[0].name: the name cannot change"),
        ("[[include]]\nseed = 'x'", "17: seed: expects a whole number"),
        ("[[include]]\ntrain.epoch = 3", "17: train.epoch: unknown key: did you mean epochs?"),
        (
            "[[include]]\n'data.shards' = 45",
            "9: train.batch_size: 1437 training samples in 45 shards",
        ),
        ("[[include]]\ndata.shards = 4", "17: data.shards: 4 shards are too few"),
        ("[include]\nseed = 2", "16: include: expects tables: write [[include]]"),
        ("[exclude]\nseed = 2", "16: exclude: expects tables: write [[exclude]]"),
        ("[[sweep]]\nexclude = [1]", "17: sweep[2].exclude: a sweep has values for the keys of a run"),
    ],
)
def test_mistakes_have_their_line(write: Write, more: str, expected: str) -> None:
    path = write(SWEEP + more)
    with pytest.raises(SpecError) as caught:
        load_experiment(path)
    assert f"{path}:{expected}" in str(caught.value)


def test_an_included_point_is_the_base_with_its_values(write: Write) -> None:
    more = """
    [communication]
    skip_rate = 0.3
    [train.optimizer]
    name = "nag"
    momentum = 0.5
    [[include]]
    train.batch_size = 8
    train.optimizer = { name = "adam", lr = 0.01 }
    [[include]]
    label = "plain"
    seed = 3
    communication = { participation = 0.5 }
    """
    points = load_experiment(write(more + SWEEP)).points
    assert len(points) == 8
    assert [point.index for point in points] == list(range(8))
    one, two = points[6:]
    assert one.run.validation.rule.kind == "average"  # the base's, not one of the sweep
    optimizer = one.run.train.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.momentum) == ("adam", 0.01, 0.9)  # replaced whole
    assert (one.run.train.batch_size, one.run.train.epochs) == (8, 2)  # merged
    assert one.swept == {"train.batch_size": 8, "train.optimizer": {"name": "adam", "lr": 0.01}}
    assert (two.label, two.run.seed) == ("plain", 3)
    assert (two.run.communication.participation, two.run.communication.skip_rate) == (0.5, 0.3)
    assert [point.label for point in points[:6]] == ALL  # what is included does not label the others
    assert one.label == "average · none · batch_size 8 · adam"
    alone = load_experiment(write("[train.optimizer]\nname = 'adam'\nlr = 0.01"), ["train.batch_size=8"]).points[0]
    assert alone.run_id == load_experiment(write("[[include]]\ntrain.batch_size = 8\ntrain.optimizer = "
        "{ name = 'adam', lr = 0.01 }")).points[1].run_id  # fmt: skip


def test_an_included_point_is_not_excluded(write: Write) -> None:
    path = write(f'{SWEEP}[[exclude]]\nattack = "none"\n[[include]]\nseed = 2')
    assert names(path)[-1] == "average · none · seed 2"


def test_what_makes_an_included_point_goes_over_what_is_set(write: Write) -> None:
    path = write("[[include]]\nlabel = 'more'\ntopology.workers = 8")
    small, more = load_experiment(path, ["topology.workers=2", "train.epochs=1"]).points
    assert (small.run.topology.workers, small.run.train.epochs) == (2, 1)
    assert (more.run.topology.workers, more.run.train.epochs) == (8, 1)


def test_an_included_point_that_the_product_has_is_a_mistake(write: Write) -> None:
    with pytest.raises(SpecError, match=r"points 0 \(average · none\) and 6 \(again\) are the same run"):
        load_experiment(write(f"{SWEEP}[[include]]\nlabel = 'again'\nseed = 1"))


def test_it_may_all_be_set_on_the_command_line_but_sweeps(write: Write) -> None:
    for key in ("sweep", "include", "exclude"):
        with pytest.raises(SpecError, match="a sweep cannot be set"):
            load_experiment(write(), [f"{key}=[1]"])


@pytest.mark.parametrize("tables", [[], [1], {}, 3, "x", [{}], [{"x.y": {}}], [{"kind": {"kind": []}}]])
def test_whatever_it_says_the_answer_is_plain_words(write: Write, tables: Any) -> None:
    from hpcps.spec.keys import plain

    for table in ("exclude", "include"):
        text = f"{table} = {plain(tables)}\n" + write().read_text()
        said = ""
        try:
            assert load_experiment(write(text=text)).points
        except SpecError as error:
            said = str(error)
        assert "mistake" in said or not said


def test_a_label_is_one_points_unless_only_the_seed_differs(tmp_path: Path) -> None:
    points = '[[include]]\nseed = 7\nlabel = "x"\n[[include]]\nseed = 8\nlabel = "x"\n'
    file = tmp_path / "labels.toml"
    base = (Path(__file__).parents[2] / "experiments" / "quickstart.toml").read_text()
    file.write_text(base + points)
    assert [point.label for point in load_experiment(file).points[-2:]] == ["x", "x"]
    file.write_text(base + points + '[[include]]\n"train.epochs" = 3\nlabel = "x"\n')
    with pytest.raises(SpecError, match=r'"x" is already the label of another point'):
        load_experiment(file)


@pytest.mark.thorough
def test_as_many_exclusions_as_points_take_a_moment(write: Write) -> None:
    """The time of a quadratic search grows beyond every limit."""
    count = 2000
    seeds = ", ".join(map(str, range(count)))
    tables = "".join(f"[[exclude]]\nseed = {seed}\n'attack.kind' = 'none'\n" for seed in range(1, count))
    began = time.process_time()
    (point,) = load_experiment(write(f"[[sweep]]\nseed = [{seeds}]\n{tables}")).points
    assert point.run.seed == 0
    assert time.process_time() - began < 15


def test_a_long_list_of_values_is_shortened_in_a_message(write: Write) -> None:
    seeds = list(range(12))
    with pytest.raises(SpecError, match=r"has seed = 99: it is 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, … \(12 values\)"):
        load_experiment(write(f"[[sweep]]\nseed = {seeds}\n[[exclude]]\nseed = 99\n"))
