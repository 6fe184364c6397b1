"""The reference of keys and the JSON Schema say what the code does."""

import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import jsonschema  # comes with nbformat
import pytest

from hpcps.spec.file_schema import file_schema
from hpcps.spec.keys import dotted_keys
from hpcps.spec.load import load_experiment
from hpcps.spec.reference import refreshed, schema_text

ROOT = Path(__file__).parents[2]
AGAIN = "run `python -m hpcps.spec.reference docs`"


def test_the_reference_is_in_step() -> None:
    page = (ROOT / "docs" / "reference" / "experiment-file.md").read_text(encoding="utf-8")
    assert page == refreshed(page), AGAIN


def test_the_schema_is_in_step() -> None:
    assert (ROOT / "docs" / "experiment.schema.json").read_text(encoding="utf-8") == schema_text(), AGAIN


def test_the_example_of_the_reference_has_the_points_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "experiment-file.md").read_text(encoding="utf-8")
    (tmp_path / "example.toml").write_text(page.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    assert len(load_experiment(tmp_path / "example.toml").points) == 6


def complete_examples() -> dict[str, str]:
    """Return the experiment files in the pages: the TOML blocks that have all required keys of the file."""
    found = {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        blocks = re.findall(r"^ *```toml\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        for number, text in enumerate(map(textwrap.dedent, blocks)):
            if not re.search(r"^name = ", text, re.MULTILINE):
                continue  # a part of a file, perhaps with an ellipsis
            if {"name", "topology", "model", "data", "train"} <= tomllib.loads(text).keys():
                found[f"{page.stem}-{number}"] = text
    return found


@pytest.mark.parametrize("name", complete_examples())
def test_the_complete_examples_of_the_pages_have_no_mistakes(name: str, tmp_path: Path) -> None:
    load_experiment(tmp_path / "example.toml", content=complete_examples()[name])


def test_every_key_is_described() -> None:
    assert not [name for name, key in dotted_keys() if not (key.description or key.tables)]


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = file_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_experiments_are_valid(validator: Any, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    values = tomllib.loads(text)
    # The schema does not know the components of plugins.
    assert validator.is_valid(values) or "plugins" in values
    assert text.startswith("#:schema ../docs/experiment.schema.json\n")


BASE = """
name = "x"
topology.workers = 4
model.name = "cnn"
data.name = "digits"
train.epochs = 2
"""


def test_the_defaults_of_the_reference_are_accepted(validator: Any) -> None:
    page = (ROOT / "docs" / "reference" / "experiment-file.md").read_text(encoding="utf-8")
    defaults = re.findall(r"### `\[([\w.]+)\]`\n\n.*; the default is `(.*)`\.\n", page)
    assert {"attack", "communication.compression"} <= {key for key, _ in defaults}
    for key, default in defaults:
        if not any(key.startswith(f"{other}.") for other, _ in defaults):  # a key of one kind only
            assert validator.is_valid(tomllib.loads(f"{BASE}{key} = {default}")), key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BASE, True),
        (BASE + "train.optimizer = { lr = 1, betas = [0.1, 0.2] }", True),
        (BASE + "[[sweep]]\ntrain.lr_decay.epochs = [[1], [1, 2]]", True),
        (BASE + "[[sweep]]\ntrain = [{ epochs = 3 }]\n'validation.rule.rho' = [1]", True),
        (BASE + "[[sweep]]\n'attack.kind' = ['none']\n[sweep.train]\n'optimizer.lr' = [1]", True),
        ("name = 'x'\n[[sweep]]\nmodel = [{ name = 'mlp' }]", True),
        (BASE + "validation.rule = { kind = 'krum', before = [{ kind = 'arc' }, { kind = 'nnm', f = 1 }] }", True),
        (BASE + "validation.rule = { kind = 'krum', before = ['arc', { kind = 'nnm', f = 1 }] }", True),
        (BASE + "validation.rule = { kind = 'krum', before = ['ark'] }", False),
        (BASE + "validation.rule = { kind = 'krum', before = { kind = 'arc' } }", False),
        ("name = 'x'", False),
        ("[[sweep]]\nseed = [1]", False),
        (BASE + "seeds = 1", False),
        (BASE + "seed = 1.5", False),
        (BASE + "attack = { scale = 1 }", False),
        (BASE + "attack = { kind = 'none', scale = 1 }", False),
        (BASE + "validation.rule = { kind = 'zeno', rhoo = 1 }", False),
        (BASE + "train.optimizer.lr = 0", False),
        (BASE + "[[sweep]]\nseed = 1", False),
        (BASE + "[[sweep]]\nseed = []", False),
        (BASE + "[[sweep]]\nname = ['a']", False),
        (BASE + "[[sweep]]\n'train.epoch' = [1]", False),
        (BASE + "[[sweep]]\n'train.batch_size' = ['a']", False),
        (BASE + "[[exclude]]\n'attack.kind' = ['none', 'random']\n'validation.rule' = 'zeno'\nseed = 1", True),
        (BASE + "[[exclude]]\ntrain.batch_size = [1, 2]\nattack = { kind = 'none' }", True),
        (BASE + "[[include]]\nlabel = 'one'\ntrain.batch_size = 1\nattack = { kind = 'random' }", True),
        (BASE + "[[include]]\n'train.optimizer' = { lr = 1 }\n[include.topology]\nworkers = 8", True),
        (BASE + "[[exclude]]\nattack = 'nobody'", False),
        (BASE + "[[exclude]]", False),
        (BASE + "[[exclude]]\n'train.batch_size' = [1, 'a']", False),
        (BASE + "[[include]]\nlabel = 1", False),
        (BASE + "[[include]]\nseed = [1]", False),
        (BASE + "[[include]]\ntrain.epoch = 1", False),
    ],
)
def test_the_schema_accepts_what_is_right_and_nothing_else(validator: Any, text: str, expected: bool) -> None:
    assert validator.is_valid(tomllib.loads(text)) is expected
