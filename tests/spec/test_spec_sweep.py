"""Sweeps and overrides: which points a file has, and what --set makes of them."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcps.errors import SpecError
from hpcps.spec.keys import plain
from hpcps.spec.label import labels
from hpcps.spec.load import load_experiment
from hpcps.spec.overrides import parse_override
from hpcps.spec.sweep import expand, read_sweep

names = st.sampled_from(["a", "b", "c.d", "c.e", "f.g.h"])


@st.composite
def sweeps(draw: st.DrawFn) -> list[dict[str, list[int]]]:
    chosen = draw(st.lists(names, unique=True, max_size=5))
    tables: list[dict[str, list[int]]] = []
    while chosen:
        size = draw(st.integers(1, len(chosen)))
        length = draw(st.integers(1, 3))
        values = st.lists(st.integers(0, 99), min_size=length, max_size=length)
        tables.append({name: draw(values) for name in chosen[:size]})
        chosen = chosen[size:]
    return tables


@given(sweeps())
def test_points_are_the_product_of_tables_whose_keys_move_together(tables: list[dict[str, list[int]]]) -> None:
    axes, problems = read_sweep(tables)
    assert not problems
    points = [{".".join(a.key): a.value for a in made} for made in expand(axes)]
    lengths = [range(len(next(iter(table.values())))) for table in tables]
    assert points == [
        {name: values[i] for table, i in zip(tables, steps, strict=True) for name, values in table.items()}
        for steps in product(*lengths)
    ]


@pytest.mark.parametrize(
    "written",
    [
        '"train.batch_size" = [2, 4]\n"train.optimizer.lr" = [1, 2]',
        "train.batch_size = [2, 4]\ntrain.optimizer.lr = [1, 2]",
        '[sweep.train]\nbatch_size = [2, 4]\n"optimizer.lr" = [1, 2]',
    ],
)
def test_dotted_keys_may_be_written_in_any_way(write: Callable[..., Path], written: str) -> None:
    experiment = load_experiment(write(f"[[sweep]]\n{written}"))
    assert [(p.run.train.batch_size, p.run.train.optimizer.lr) for p in experiment.points] == [(2, 1.0), (4, 2.0)]
    assert experiment.points[1].swept == {"train.batch_size": 4, "train.optimizer.lr": 2}


def test_a_swept_table_replaces_the_whole_table_and_keys_inside_it_may_follow(write: Callable[..., Path]) -> None:
    path = write(
        """
        [attack]
        kind = "random"
        scope = "worker"
        rate = 0.5
        [[sweep]]
        attack = [{ kind = "random" }, { kind = "negative" }]
        [[sweep]]
        "attack.rate" = [0.1, 0.3]
        """
    )
    attacks = [point.run.attack.model_dump() for point in load_experiment(path).points]
    assert [(a["kind"], a["rate"], a["scope"]) for a in attacks] == [
        ("random", 0.1, "block"),
        ("random", 0.3, "block"),
        ("negative", 0.1, "block"),
        ("negative", 0.3, "block"),
    ]


def test_values_that_are_lists_are_swept_as_such(write: Callable[..., Path]) -> None:
    points = load_experiment(write('[[sweep]]\n"train.lr_decay.epochs" = [[], [1], [1, 2]]')).points
    assert [point.run.train.lr_decay.epochs for point in points] == [(), (1,), (1, 2)]


@pytest.mark.parametrize(
    ("override", "seeds", "rates"),
    [
        ("seed=7", [7, 7], [0.1, 0.2]),
        ("communication.skip_rate=0.3", [1, 2], [0.3, 0.3]),
        ("communication={skip_rate = 0.4}", [1, 2], [0.4, 0.4]),
    ],
)
def test_an_override_replaces_the_sweep_of_its_key_and_leaves_what_moved_with_it(
    write: Callable[..., Path], override: str, seeds: list[int], rates: list[float]
) -> None:
    path = write('[[sweep]]\nseed = [1, 2]\n"communication.skip_rate" = [0.1, 0.2]')
    points = load_experiment(path, [override]).points
    assert [point.run.seed for point in points] == seeds
    assert [point.run.communication.skip_rate for point in points] == rates


def test_an_override_of_the_only_swept_key_leaves_one_point(write: Callable[..., Path]) -> None:
    experiment = load_experiment(write("[[sweep]]\nseed = [1, 2, 3]"), ["seed=5"])
    assert [(p.run.seed, p.label, p.swept) for p in experiment.points] == [(5, "small", {})]


def test_an_override_of_a_table_replaces_the_sweeps_inside_it(write: Callable[..., Path]) -> None:
    path = write('[[sweep]]\n"communication.skip_rate" = [0.1, 0.2]')
    assert len(load_experiment(path, ["communication={participation = 0.5}"]).points) == 1


def test_an_override_inside_a_swept_table_goes_over_every_value(write: Callable[..., Path]) -> None:
    path = write('[[sweep]]\nattack = [{ kind = "random" }, { kind = "negative", scale = 2 }]')
    points = load_experiment(path, ["attack.scale=9", "attack.rate=0.5"]).points
    attacks = [point.run.attack.model_dump() for point in points]
    assert [(attack["scale"], attack["rate"]) for attack in attacks] == [(9, 0.5), (9, 0.5)]


def test_the_last_of_two_overrides_counts(write: Callable[..., Path]) -> None:
    path = write()
    assert load_experiment(path, ["seed=5", "seed=6"]).points[0].run.seed == 6
    around = load_experiment(path, ["attack.scale=9", 'attack={kind = "none"}', "seed=1"])
    assert around.points[0].run.attack.kind == "none"


toml_values = st.recursive(
    st.booleans()
    | st.integers()
    | st.text(st.characters(codec="ascii", exclude_characters='"\\\x7f', min_codepoint=32)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b-c", "d_1"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.lists(st.text("aZ09_-", min_size=1), min_size=1, max_size=4), toml_values)
def test_any_value_that_toml_can_write_comes_through(parts: list[str], value: Any) -> None:
    override = parse_override(f"{'.'.join(parts)} = {plain(value)}")
    assert override.key == tuple(parts)
    assert override.value == value
    assert type(override.value) is type(value)


@given(
    st.from_regex(r"\A[a-zA-Z_/][a-zA-Z_/. =-]*[a-z]\Z").filter(
        lambda text: text not in ("true", "false", "inf", "nan")
    )
)
def test_a_text_may_go_without_quotes(text: str) -> None:
    assert parse_override(f"data.dir={text}").value == text


@pytest.mark.parametrize("text", ["", "seed", "=1", "a..b=1", ".a=1", "a b=1", "seed=", "sweep=1", "sweep.seed=[1]"])
def test_what_is_no_override_is_refused(write: Callable[..., Path], text: str) -> None:
    with pytest.raises(SpecError, match=r"--set"):
        load_experiment(write(), [text])


@pytest.mark.parametrize("text", ["[1", '"a', "{a=", "'"])
def test_a_value_that_begins_like_toml_must_be_toml(text: str) -> None:
    with pytest.raises(ValueError, match="bracket missing"):
        parse_override(f"seed={text}")


def test_a_value_cannot_smuggle_in_another_key() -> None:
    with pytest.raises(ValueError, match="one line"):
        parse_override("seed=1\nname = 2")


SEEDS = "[[sweep]]\nseed = [{}]\n"


def test_a_kind_beside_tables_is_its_name_and_empty_lists_are_left_out() -> None:
    splits = ["iid", {"kind": "dirichlet", "alpha": 0.1}, {"kind": "dirichlet", "alpha": 0.3}]
    points = [{"data": {"split": split}} for split in splits]
    assert labels(points, [("data", "split")], "x") == ["iid", "dirichlet alpha 0.1", "dirichlet alpha 0.3"]
    rules = [{"rule": {"kind": "krum", "before": before}} for before in ([], [{"kind": "nnm"}])]
    assert labels(rules, [("rule",)], "x") == ["krum", "krum before [nnm]"]


def test_included_points_are_named_as_if_alone(write: Callable[..., Path]) -> None:
    included = "".join(
        f"[[include]]\nseed = {n}\nattack = {{ kind = 'negative', scale = {n + 2} }}\n" for n in range(9)
    )
    points = load_experiment(write(included)).points
    assert [point.label for point in points[1:]] == [f"seed {n} · negative {n + 2}" for n in range(9)]


def test_a_sweep_of_too_many_points_is_refused_before_they_are_made(write: Callable[..., Path]) -> None:
    numbers = ", ".join(map(str, range(100)))
    path = write("".join(SEEDS.format(numbers).replace("seed", f'"a{n}"') for n in range(40)))
    with pytest.raises(SpecError, match=":11: sweep: it makes more than 100,000 points: sweep fewer"):
        load_experiment(path)


def test_set_makes_a_large_sweep_small_also_where_points_are_excluded(write: Callable[..., Path]) -> None:
    numbers = ", ".join(map(str, range(400)))
    sweeps = SEEDS.format(numbers) + SEEDS.format(numbers).replace("seed", '"data.limit"')
    excluded = "[[exclude]]\nseed = 1\n"
    with pytest.raises(SpecError, match="it makes more than 100,000 points"):
        load_experiment(write(sweeps + excluded))
    assert len(load_experiment(write(sweeps.replace("[0,", "[1000,") + excluded), ["data.limit=800"]).points) == 399


BASE = """
name = "x"
topology.workers = 4
model.name = "cnn"
train.epochs = 1
[data]
name = "digits"
split = { kind = "dirichlet", alpha = 0.5 }
[[sweep]]
"""


def test_a_swept_table_that_drops_keys_of_the_base_is_a_warning(write: Callable[..., Path]) -> None:
    def warnings_of_run(values: str) -> list[int]:
        points = load_experiment(write("", f"{BASE}data = {values}")).points
        said = [[text for text in point.warnings if "replaces the whole table" in text] for point in points]
        dropped = 'its split = { kind = "dirichlet", alpha = 0.5 } does not hold here'
        assert all(dropped in text for texts in said for text in texts)
        return [len(texts) for texts in said]

    assert warnings_of_run('[{ name = "digits" }, { name = "synthetic" }]') == [1, 1]
    assert warnings_of_run('[{ name = "digits", split = "iid" }, { name = "synthetic", split = "by_class" }]') == [0, 0]
