"""Run ids: what they depend on, what not, and that they stay what they were."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_libraries import LIBRARIES

from hpcps.data.splits import ByClass
from hpcps.errors import SpecError
from hpcps.records.variants import variants
from hpcps.spec.identity import IRRELEVANT, run_id
from hpcps.spec.keys import dotted_keys
from hpcps.spec.load import load_experiment
from hpcps.spec.schema import Run
from hpcps.spec.tree import flatten

BASE = {
    "name": "small",
    "topology": {"workers": 4},
    "model": {"name": "cnn"},
    "data": {"name": "digits"},
    "train": {"epochs": 2},
}
MODELLED = {"kind": "modelled"}


def build(**more: object) -> Run:
    tree: dict[str, object] = {}
    for key in {*BASE, *more}:
        value = more.get(key, BASE.get(key))
        base = BASE.get(key)
        tree[key] = {**base, **value} if isinstance(base, dict) and isinstance(value, dict) else value
    return Run.model_validate(tree)


# These must never change: results that exist are found by them. A default that has to change raises SCHEMA_VERSION.
GOLDEN = [
    ({}, "57cd3932b7"),
    ({"attack": {"kind": "negative"}}, "39b0bc4b5d"),
    ({"validation": {"rule": {"kind": "zeno", "rho": 0.01}, "batchnorm": "averaged"}}, "15ebad88d4"),
    ({"train": {"optimizer": {"lr": 1e-4}, "lr_decay": {"epochs": [10, 15]}}, "data": {"shards": 9}}, "5f4e325f70"),
]


@pytest.mark.parametrize(("more", "expected"), GOLDEN)
def test_ids_are_what_they_were(more: dict[str, object], expected: str) -> None:
    assert run_id(build(**more)) == expected


OVERWRITTEN = {"train": {"first_step": "overwritten"}}
ASYNC_OVERWRITTEN = {"train": {"mode": "async", "first_step": "overwritten"}}


@pytest.mark.parametrize(
    ("more", "before", "changed"),
    [
        (OVERWRITTEN, "395c3fbde7", True),
        ({**ASYNC_OVERWRITTEN, "validation": {"rule": {"kind": "naive_async"}}}, "70b97aac5d", True),
        ({**OVERWRITTEN, "validation": {"rule": {"kind": "zeno"}}}, "2d0ebf7c38", False),
        ({**ASYNC_OVERWRITTEN, "validation": {"rule": {"kind": "zeno++"}}}, "866972c919", False),
        ({**OVERWRITTEN, "topology": {"validators": 0}}, "5defde87d4", False),
        ({**OVERWRITTEN, "topology": {"workers": 0, "servers": 0}, "data": {"shards": 5}}, "3e446c456b", False),
        ({"data": {"split": "by_class"}}, "0632da9c12", True),
        ({"data": {"split": "dirichlet"}, "topology": {"validators": 0}}, "e8d0f26d6c", True),
        ({"data": {"split": "dirichlet", "shards": 4}, "topology": {"validators": 0}}, "b8371c1d94", False),
        ({"validation": {"rule": {"kind": "geometric_median"}}}, "c1de71f780", True),
        ({"validation": {"rule": {"kind": "geometric_median", "tolerance": 0.0}}}, "d25d6f675f", False),
    ],
)
def test_a_revision_gives_new_ids_to_the_runs_that_it_changes_only(
    more: dict[str, object], before: str, changed: bool
) -> None:
    assert (run_id(build(**more)) != before) == changed


@pytest.mark.parametrize(
    "more",
    [
        {"name": "other"},
        {"description": "words"},
        {"fidelity": "artifact"},
        {"data": {"dir": "/elsewhere"}},
        {"transport": {"timeout": 5.0}},
        {"seed": 1},
        {"data": {"shards": 5}},
        {"data": {"augment": False}},
        {"data": {"validation_split": "iid"}},
        {"attack": {"kind": "none"}},
        {"validation": {"rule": {"kind": "average"}}},
        {"train": {"optimizer": {"name": "nag"}}},
        {"train": {"exchange": "servers"}},
    ],
)
def test_what_does_not_affect_results_or_says_the_default_leaves_the_id_alone(more: dict[str, object]) -> None:
    assert run_id(build(**more)) == run_id(build())


def test_mean_is_another_name_of_average() -> None:
    for keys in ({}, {"skipped": "left_out"}, {"before": [{"kind": "nnm", "f": 1}]}):
        ids = {run_id(build(validation={"rule": {"kind": kind, **keys}})) for kind in ("average", "mean")}
        assert len(ids) == 1
        assert (ids == {run_id(build())}) == (not keys)


def test_each_pre_aggregator_and_their_order_matter() -> None:
    chains = ([], [{"kind": "nnm"}], [{"kind": "nnm", "f": 1}], [{"kind": "arc"}, {"kind": "nnm"}],
              [{"kind": "nnm"}, {"kind": "arc"}])  # fmt: skip
    ids = [run_id(build(validation={"rule": {"kind": "median", "before": chain}})) for chain in chains]
    assert len(set(ids)) == len(chains)
    assert ids[0] == run_id(build(validation={"rule": {"kind": "median"}}))
    assert ids[1] == run_id(build(validation={"rule": {"kind": "median", "before": ["nnm"]}}))


@pytest.mark.parametrize(
    "more",
    [
        {"seed": 2},
        {"data": {"shards": 6}},
        {"data": {"limit": 100}},
        {"topology": {"colocate_validators": True}},
        {"transport": {"kind": "inproc"}},
        {"attack": {"kind": "random"}},
        {"attack": {"kind": "random", "rate": 0.3}},
        {"validation": {"rule": {"kind": "zeno"}}},
        {"train": {"first_step": "overwritten"}},
        {"train": {"exchange": "ring"}},
        {"train": {"optimizer": {"betas": [0.9, 0.99]}}},
    ],
)
def test_everything_else_changes_it(more: dict[str, object]) -> None:
    assert run_id(build(**more)) != run_id(build())


@pytest.mark.parametrize(
    ("schedule", "same"),
    [
        ({"from_epoch": 0, "every": 1, "on": 1}, True),
        ({"from_epoch": 1}, False),
        ({"every": 2}, False),
        ({"every": 2, "on": 2}, False),
    ],
)
def test_the_schedule_of_an_attack_counts_unless_it_is_the_one_that_acts_always(
    schedule: dict[str, int], same: bool
) -> None:
    assert (run_id(build(attack={"kind": "negative", **schedule})) == "39b0bc4b5d") == same


@given(st.integers(-3, 3), st.integers(1, 5))
def test_equal_numbers_give_equal_ids(rho: int, decay: int) -> None:
    whole = build(validation={"rule": {"kind": "zeno", "rho": rho}}, train={"lr_decay": {"factor": decay}})
    real = build(validation={"rule": {"kind": "zeno", "rho": float(rho)}}, train={"lr_decay": {"factor": float(decay)}})
    assert run_id(whole) == run_id(real)


def test_the_written_run_has_the_id_it_had_when_read_again() -> None:
    run = build(attack={"kind": "randomscale"}, train={"lr_decay": {"epochs": [1, 2]}})
    assert run_id(Run.model_validate_json(run.model_dump_json())) == run_id(run)


def test_the_partition_counts_only_in_a_simulation() -> None:
    """Elsewhere it costs or saves time and nothing else; modelled time is a result."""
    partition = {"partition": 4096}
    assert run_id(build(transport=partition)) == run_id(build())
    inproc = {"kind": "inproc"}
    assert run_id(build(transport=inproc | partition, simulation=MODELLED)) != run_id(
        build(transport=inproc, simulation=MODELLED)
    )


def having(table: Any, path: list[str], value: object) -> Any:
    """Return a copy of a table with another value of one key, which need not be valid."""
    name, *rest = path
    return table.model_copy(update={name: having(getattr(table, name), rest, value) if rest else value})


@pytest.mark.parametrize(
    "tables",
    [{}, {"simulation": MODELLED}, {"survive": {"workers": True, "residual": "checkpoint"}}],
    ids=["real", "simulated", "with residuals of checkpoints"],
)
def test_a_key_makes_another_variant_if_and_only_if_it_makes_another_run(tables: dict[str, object]) -> None:
    run = build(attack={"kind": "negative"}, **tables)
    keys = [*flatten(run.model_dump(mode="json"))]
    assert {"transport.shared_memory", "train.mps", "checkpoint.every", "validation.rule.kind", "seed"} <= {*keys}
    wrong = []
    values = {"data.name": "mnist", "data.split": ByClass()}
    for key in keys:
        other = having(run, key.split("."), values.get(key, 12345))
        specs = [{"run": each.model_dump(mode="json", warnings=False)} for each in (run, other)]
        # Another seed is another run, and belongs to the same curve.
        if any(variants(specs)) != (run_id(other) != run_id(run) and key != "seed"):
            wrong.append(key)
    assert not wrong


def test_what_is_left_out_exists() -> None:
    assert {name for name, _ in dotted_keys()} >= IRRELEVANT


@pytest.mark.usefixtures("starts_processes")
def test_ids_do_not_depend_on_the_hash_seed(write: Callable[..., Path]) -> None:
    path = write('[[sweep]]\nattack = [{ kind = "none" }, { kind = "random", scale = 3 }]')
    code = f"from hpcps.spec.load import *; print(*(p.run_id for p in load_experiment({str(path)!r}).points))"
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path), **LIBRARIES},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert told == {" ".join(point.run_id for point in load_experiment(path).points) + "\n"}


def test_two_points_of_a_file_cannot_be_the_same_run(write: Callable[..., Path]) -> None:
    path = write('[[sweep]]\n"transport.timeout" = [10, 20]')
    with pytest.raises(
        SpecError, match=r"toml:11: sweep: points 0 \(timeout 10\) and 1 \(timeout 20\) are the same run"
    ):
        load_experiment(path)
