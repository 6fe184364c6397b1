"""Every key with every hostile value, and thousands of mutated experiment files: `make soak`."""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "spec"))
import pytest
from hostile import KEYS, VALUES, mutated

from hpcps.errors import SpecError
from hpcps.spec.load import load_experiment

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


pytestmark = pytest.mark.soak


def test_every_key_with_every_hostile_value() -> None:
    refused = 0
    for key in KEYS:
        for value in VALUES:
            for more in ((), ("train.mode=async", "validation.rule.kind=fed_async")):
                try:
                    load_experiment(EXPERIMENTS[0].with_name("quickstart.toml"), [*more, f"{key}={value}"])
                except SpecError:
                    refused += 1
    assert refused > len(KEYS) * len(VALUES)


def test_5000_mutated_files_of_each_experiment(tmp_path: Path) -> None:
    source = random.Random(0)
    for number in range(5000):
        for file in EXPERIMENTS:
            path = tmp_path / "mutated.toml"
            path.write_bytes(mutated(source, file.read_bytes()))
            try:
                load_experiment(path)
            except SpecError:
                continue
            except Exception as error:
                raise AssertionError(f"{file.name}, {number}: {path.read_bytes()!r}") from error
