"""Rules, attacks and other components by name, on arrays of a notebook."""

from pathlib import Path

import numpy as np
import pytest
import torch

import hpcps

ROOT = Path(__file__).parents[2]
X = np.random.default_rng(0).normal(size=(7, 5))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy_in_numpy_out(dtype):
    rows = X.astype(dtype)
    combined = hpcps.registry.rules["trimmed_mean"](trim=0.2)(rows)
    assert isinstance(combined, np.ndarray)
    assert combined.dtype == dtype
    inner = np.sort(rows.astype(np.float32), axis=0)[1:-1].mean(axis=0)
    np.testing.assert_allclose(combined.astype(np.float64), inner, rtol=2e-3 if dtype == np.float16 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_torch_in_torch_out(dtype):
    rows = torch.tensor(X).to(dtype)
    combined = hpcps.registry.rules["median"]()(rows)
    assert combined.dtype == dtype
    assert combined.device == rows.device
    assert torch.equal(combined, rows.float().median(dim=0).values.to(dtype))  # rules compute in float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_stays_a_gpu():
    rows = torch.tensor(X, device="cuda")
    combined = hpcps.registry.rules["average"]()(rows)
    assert combined.device == rows.device
    attacked = hpcps.registry.attacks["negative"](scale=2)(combined)
    assert attacked.device == rows.device
    torch.testing.assert_close(attacked, -2 * rows.float().mean(dim=0).double())


def test_whole_numbers_give_fractions():
    assert torch.equal(hpcps.rules.Average()(torch.tensor([[1], [2]])), torch.tensor([1.5]))
    assert hpcps.rules.Average()([[1], [2]]) == [1.5]


def test_blocks_and_reference():
    reference = X[0]
    rows = np.stack([reference, np.r_[reference[:2], -9 * reference[2:]]])
    zeno = hpcps.registry.rules["zeno"]()
    np.testing.assert_allclose(zeno(rows, reference=reference, blocks=[2, 3]), reference, rtol=1e-6)
    with pytest.raises(ValueError, match="zeno needs reference"):
        zeno(rows)
    with pytest.raises(ValueError, match="blocks add up to 4"):
        zeno(rows, reference=reference, blocks=[2, 2])


@pytest.mark.parametrize("blocks", [np.array([2, 3]), torch.tensor([2, 3])])
def test_blocks_of_an_array(blocks):
    zeno = hpcps.registry.rules["zeno"]()
    found = zeno(X, reference=X[0], blocks=blocks)
    np.testing.assert_array_equal(found, zeno(X, reference=X[0], blocks=[2, 3]))


@pytest.mark.parametrize("blocks", [5, [-1, 6], [2.5, 2.5], [[2, 3]]])
def test_blocks_are_sizes(blocks):
    with pytest.raises(ValueError, match=r"blocks must be whole numbers from 0, such as \[2, 3\]"):
        hpcps.rules.Average()(X, blocks=blocks)


def test_complex_numbers_are_no_updates():
    with pytest.raises(ValueError, match="updates cannot be read as numbers: they are complex"):
        hpcps.rules.Average()(X + 1j)
    with pytest.raises(ValueError, match="updates cannot be read as numbers: they are complex"):
        hpcps.rules.Average()(torch.tensor(X + 1j))


@pytest.mark.parametrize("name", ["dnc", "loss_score"])
def test_a_need_without_an_argument_of_its_own_comes_in_a_context(name):
    with pytest.raises(ValueError, match=r"give it in `context`, such as hpcps\.rules\.Context\((random|loss)=…\)"):
        hpcps.registry.rules[name](f=1)(X)


def test_keys_may_be_numbers_of_numpy():
    assert hpcps.rules.Krum(f=np.int64(2)) == hpcps.rules.Krum(f=2)
    assert hpcps.rules.TrimmedMean(trim=np.float32(0.25)).trim == 0.25


def test_a_rule_of_asynchronous_training_decides_on_one_update():
    reference = X[0]
    rule = hpcps.registry.rules["zeno++"]()
    np.testing.assert_allclose(rule(2 * reference, reference=reference), reference, rtol=1e-6)
    np.testing.assert_allclose(rule(-reference, reference=reference), reference, rtol=1e-6)  # negated
    broken = np.r_[np.nan, reference[1:]]
    filtered = rule(torch.tensor(broken), reference=reference, blocks=[2, 3])
    assert torch.equal(filtered[:2], torch.zeros(2, dtype=torch.float64))
    np.testing.assert_allclose(filtered[2:], reference[2:], rtol=1e-6)
    with pytest.raises(ValueError, match=r"zeno\+\+ needs reference"):
        rule(reference)


def test_every_kind_by_name():
    assert hpcps.registry.datasets["digits"](limit=100).training_size == 100
    assert hpcps.registry.models["mlp"]().name == "mlp"
    assert hpcps.registry.splits["dirichlet"]().kind == "dirichlet"
    assert {"rules", "attacks", "datasets", "splits", "models", "load_plugins"} <= set(dir(hpcps.registry))


def test_an_unknown_name_gives_the_near_one():
    with pytest.raises(hpcps.SpecError, match="unknown rule 'trimed_mean': did you mean 'trimmed_mean'"):
        hpcps.registry.rules["trimed_mean"]
    with pytest.raises(KeyError):
        hpcps.registry.rules["trimed_mean"]
    assert hpcps.registry.rules.get("trimed_mean") is None
    with pytest.raises(AttributeError, match="rulez"):
        hpcps.registry.rulez  # noqa: B018


@pytest.mark.parametrize(
    ("kind", "name", "keys", "table"),
    [
        ("rules", "trimmed_mean", {"trim": 0.7}, "validation.rule"),
        ("rules", "trimmed_mean", {"trimm": 0.2, "other": 1}, "validation.rule"),
        ("attacks", "negative", {"scale": "much", "rate": 3}, "attack"),
        ("datasets", "digits", {"limt": 3}, "data"),
        ("datasets", "digits", {"split": "dirichlett"}, "data"),
        ("models", "mlp", {"backend": "jax"}, "model"),
    ],
)
def test_wrong_keys_give_the_errors_of_the_file(kind, name, keys, table):
    with pytest.raises(hpcps.SpecError) as direct:
        getattr(hpcps.registry, kind)[name](**keys)
    assert direct.value.__cause__ is None
    assert direct.value.__suppress_context__ or direct.value.__context__ is None
    # The file's messages, without its name and lines. In a file the table of data or of a model lists all components.
    tag = getattr(hpcps.registry, kind).kind.tag
    tables = {"validation": {"rule": {tag: name, **keys}}} if kind == "rules" else {table: {tag: name, **keys}}
    from small import small

    with pytest.raises(hpcps.SpecError) as read:
        hpcps.load({**small(validation={}), **tables})
    first, *told = [line for line in str(direct.value).splitlines() if " takes " not in line]
    expected = [line for line in str(read.value).splitlines() if " takes " not in line]
    assert name in first
    assert [line.partition(" (default")[0].strip() for line in told] == [
        line.partition(" (default")[0].strip() for line in expected[1:]
    ]


def test_a_class_of_a_notebook_cell_has_the_same_errors():
    from typing import Literal

    class Halved(hpcps.rules.Rule):
        """Half of the mean."""

        kind: Literal["halved"] = "halved"
        by: float = 2.0

        def aggregate(self, updates, context):
            return updates.mean(axis=0) / self.by

    np.testing.assert_allclose(Halved()(X), X.mean(axis=0) / 2, rtol=1e-5)
    with pytest.raises(hpcps.SpecError, match=r"by: expects a number \(default 2.0\), got \"x\""):
        Halved(by="x")


def test_plugin_files_by_name(tmp_path):
    file = tmp_path / "my_rule.py"
    text = (ROOT / "examples/plugins/my_rule.py").read_text()
    file.write_text(text)
    assert hpcps.registry.load_plugins(file) == ("clipped_mean",)
    assert np.linalg.norm(hpcps.registry.rules["clipped_mean"](radius=0.5)(X)) <= 0.5 + 1e-6
    file.write_text(text.replace("clipped_mean", "clipped_again"))
    assert hpcps.registry.load_plugins("my_rule.py") == ("clipped_again",)
    assert "clipped_mean" not in hpcps.registry.rules
    file.write_text(text.replace("clipped_mean", "zeno"))
    with pytest.raises(hpcps.SpecError, match="'zeno', which is also built in"):
        hpcps.registry.load_plugins(file)
    with pytest.raises(hpcps.SpecError, match="there is no such file"):
        hpcps.registry.load_plugins("none.py")
