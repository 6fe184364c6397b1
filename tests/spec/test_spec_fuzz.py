"""Whatever an experiment file or a `--set` says, it is a run or a `SpecError`, soon."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hostile import KEYS, VALUES, mutated, numbers

from hpcps.errors import InputError, SpecError
from hpcps.inputs import MiB, parse_toml
from hpcps.spec.keys import dotted_keys
from hpcps.spec.load import load_experiment, select

Write = Callable[..., Path]
EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


def read(path: Path, *overrides: str) -> None:
    """Load a file, which may be refused, with a message for people."""
    with suppress(SpecError):
        assert load_experiment(path, overrides).points


def test_every_number_has_bounds() -> None:
    found = {name: schema for name, key in dotted_keys() for schema in numbers(key)}
    assert {"train.epochs", "topology.servers", "transport.partition", "train.lr_decay.epochs"} <= set(found)
    sides = ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"})
    assert [name for name, schema in found.items() if not all(side & set(schema) for side in sides)] == []


@pytest.mark.thorough
@pytest.mark.timeout(60)
def test_every_key_takes_or_refuses_every_value(write: Write) -> None:
    source = random.Random(1)
    small = write()
    for key in KEYS:
        for value in source.sample(VALUES, 8):
            read(small, f"{key}={value}")


@pytest.mark.sample(1)
@pytest.mark.parametrize("where", ["[[sweep]]\n'{}' = [{}]", "[[exclude]]\n'{}' = {}", "[[include]]\n'{}' = {}"])
def test_tables_that_make_points_take_or_refuse_every_value(where: str, write: Write) -> None:
    source = random.Random(2)
    for value in VALUES:
        read(write("[[sweep]]\ntrain.batch_size = [4, 8]\n" + where.format(source.choice(KEYS), value)))
        read(write(f"{where.partition(chr(10))[0]}\n{source.choice(KEYS).partition('.')[0]} = {value}"))


@pytest.mark.sample(4)
@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_mutated_files_are_runs_or_mistakes(file: Path, tmp_path: Path) -> None:
    source = random.Random(file.name)
    for _ in range(12):
        path = tmp_path / "mutated.toml"
        path.write_bytes(mutated(source, file.read_bytes()))
        read(path)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.epochs=1" + "0" * 400, r"train\.epochs: expects a whole number from 1 to 1000000, got 10+…"),
        ("topology.servers=9223372036854775808", r"servers: expects a whole number from 0 to 65536"),
        ("train.lr_decay.epochs=" + "[" * 5000, "nested more than 64 deep"),
        ("train.epochs=" + "1" * 5000, "train.epochs=1+…: 1+…: a number in it is too long"),
        ("a" + ".a" * 5000 + "=1", "expects key=value"),
    ],
)
def test_hostile_overrides_are_refused_in_a_few_words(override: str, said: str, write: Write) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        load_experiment(write(), [override])
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 500_000, "nested more than 64 deep"),
        ("a = " + "[" * 70 + "]" * 70, "a: lists or tables are nested more than 64 deep"),
        ("\n" + "a." * 500_000 + "a = 1", ":2: a key of more than 64 parts"),
        ("[" + '"a".' * 200_000 + "a]", ":1: a key of more than 64 parts"),
        ("b = 1\n\na = 0x" + "f" * 5000, "a: a number of more than 4096 bits"),
        ('a = "' + '\\"' * 200_000, "Unterminated string"),
    ],
)
def test_hostile_toml_is_refused_soon(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_toml("file", text)


def test_strings_and_comments_are_no_long_keys() -> None:
    chain = "a." * 100
    text = f"""# {chain}a\na = "{chain}a"\nb = '{chain}a'\nc = \"\"\"\n{chain}a\"\"\"\nd = '''\n{chain}a'''\n"""
    assert set(parse_toml("file", text)) == set("abcd")


def test_a_file_that_never_ends_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"more than {2 * MiB:,} bytes"):
        load_experiment("/dev/zero")


@pytest.mark.parametrize("selector", ["1" * 5000, "0-" + "9" * 5000, "²", "seed=" + "[" * 5000, "seed=" + "1" * 5000])
def test_hostile_selectors_are_refused(selector: str, write: Write) -> None:
    with pytest.raises(SpecError):
        select(load_experiment(write()).points, [selector])
