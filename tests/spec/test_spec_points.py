"""Points: resolved values, presets, labels and their selection; and the experiments that are shipped."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcps.errors import SpecError
from hpcps.spec.checks import contradictions
from hpcps.spec.load import LoadedExperiment, load_experiment, select
from hpcps.spec.presets import PRESETS
from hpcps.spec.schema import Run
from hpcps.spec.tree import get

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FIG3 = EXPERIMENTS / "fig3_sync_single_validator.toml"
SHIPPED = sorted(EXPERIMENTS.glob("*.toml"))
Write = Callable[..., Path]


def steps(factor: float, epochs: list[int], validator_epochs: list[int] | None) -> dict[str, object]:
    """Return the table of a step decay."""
    epochs_of = {"epochs": epochs, "validator_epochs": validator_epochs}
    return {"schedule": "steps", "factor": factor, **epochs_of, "final": 0.0}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_resolved_runs_survive_json(path: Path) -> None:
    for point in load_experiment(path).points:
        written = point.run.model_dump_json()
        assert Run.model_validate_json(written, strict=True) == point.run
        assert Run.model_validate(point.run.model_dump(mode="json")) == point.run


@pytest.mark.parametrize("name", ["cifar_resnet20_v1", "resnet18_v1"])
def test_points_survive_pickling_with_every_network(name: str) -> None:
    """The classes of these networks are made in a loop, so that pickle does not find them by name."""
    points = load_experiment(FIG3, [f"model.name={name}"]).points
    assert pickle.loads(pickle.dumps(points)) == points


ALWAYS = {"from_epoch": 0, "every": 1, "on": 1, "acts_on": "update"}


def test_figure_3_is_what_the_paper_ran() -> None:
    experiment = load_experiment(FIG3)
    usual: dict[str, Any] = {"before": [], "skipped": "zero"}
    rules: list[dict[str, Any]] = [
        {"kind": "average", **usual},
        {"kind": "trimmed_mean", **usual, "trim": 0.2, "f": None},
        {"kind": "phocas", **usual, "trim": 0.2, "f": None},
        {"kind": "zeno", **usual, "rho": -0.001, "epsilon": 0.6},
    ]
    attacks: list[dict[str, Any]] = [
        {"kind": "none"},
        {"kind": "negative", "scale": 6.0, "rate": 0.2, "scope": "block", **ALWAYS},
        {"kind": "random", "scale": 1.0, "rate": 0.2, "scope": "block", **ALWAYS},
        {"kind": "randomscale", "scale": 8.0, "rate": 0.2, "scope": "block", **ALWAYS},
    ]
    runs = [point.run.model_dump(mode="json") for point in experiment.points]
    assert [(run["validation"]["rule"], run["attack"]) for run in runs] == [(r, a) for r in rules for a in attacks]
    expected = {
        "topology": {"servers": 1, "validators": 1, "workers": 16, "colocate_validators": False, "evaluators": 0},
        "model": {"backend": "torch", "name": "cifar_resnet20_v1"},
        "communication": {"participation": 0.5, "skip_rate": 0.2, "compression": "none"},
        "seed": 1,
    }
    for run in runs:
        assert {key: run[key] for key in expected} == expected
        data, train, validation = run["data"], run["train"], run["validation"]
        assert (data["name"], data["split"], data["shards"], data["augment"]) == ("cifar10", "iid", 17, True)
        assert (data["limit"], data["test_limit"]) == (None, None)
        assert (train["mode"], train["epochs"], train["batch_size"], train["local_steps"]) == ("sync", 200, 32, 8)
        optimizer = train["optimizer"]
        assert (optimizer["name"], optimizer["lr"], optimizer["momentum"]) == ("nag", 0.2, 0.9)
        assert optimizer["weight_decay"] == 1e-4
        assert train["lr_decay"] == steps(0.1, [100, 150], None)
        assert train["warmup"]["epochs"] == 0
        assert (validation["evaluate"], validation["batchnorm"]) == ("validator_model", "validator")
        assert train["first_step"] == "overwritten"


@pytest.mark.parametrize(
    ("name", "topology", "participation"),
    [
        (
            "fig5_async_single_validator",
            {"servers": 1, "validators": 1, "workers": 8, "colocate_validators": False, "evaluators": 0},
            0.5,
        ),
        (
            "fig6_async_two_validators",
            {"servers": 2, "validators": 2, "workers": 8, "colocate_validators": True, "evaluators": 0},
            1.0,
        ),
    ],
)
def test_figures_5_and_6_are_what_the_paper_ran(name: str, topology: dict[str, Any], participation: float) -> None:
    rules = [{"kind": "naive_async"}, {"kind": "zeno++", "threshold": -0.02}]
    attacks: list[dict[str, Any]] = [
        {"kind": "none"},
        {"kind": "negative", "scale": 2.0, "rate": 0.2, "scope": "block", **ALWAYS},
        {"kind": "random", "scale": 1.0, "rate": 0.2, "scope": "block", **ALWAYS},
        {"kind": "randomscale", "scale": 8.0, "rate": 0.2, "scope": "block", **ALWAYS},
    ]
    runs = [point.run.model_dump(mode="json") for point in load_experiment(EXPERIMENTS / f"{name}.toml").points]
    assert [(run["validation"]["rule"], run["attack"]) for run in runs] == [(r, a) for r in rules for a in attacks]
    expected = {
        "topology": topology,
        "model": {"backend": "torch", "name": "cifar_resnet20_v1"},
        "communication": {"participation": participation, "skip_rate": 0.2, "compression": "none"},
        "asynchronous": {
            "alpha": 0.4,
            "alpha_decay": {"factor": 0.5, "epochs": [100]},
            "absent": "accumulate",
            "updates_per_refresh": "share",
            "epochs": "own",
            "proximal": {"worker": 0.2, "validator": 0.2},
            "buffer": None,
            "staleness": {"kind": "constant"},
        },
        "seed": 1,
    }
    for run in runs:
        assert {key: run[key] for key in expected} == expected
        assert run["heterogeneity"]["delay"] == {"kind": "uniform", "low": 0.0, "high": 8.0}
        data, train, validation = run["data"], run["train"], run["validation"]
        assert (data["name"], data["split"], data["shards"], data["augment"]) == ("cifar10", "iid", 9, True)
        assert (data["limit"], data["test_limit"]) == (None, None)
        assert (train["mode"], train["epochs"], train["batch_size"], train["local_steps"]) == ("async", 200, 64, 8)
        optimizer = train["optimizer"]
        assert (optimizer["name"], optimizer["lr"], optimizer["momentum"]) == ("nag", 0.4, 0.9)
        assert optimizer["weight_decay"] == 1e-4
        assert train["lr_decay"] == steps(0.2, [100, 150], [100])
        assert (train["lr_scale"], train["first_step"]) == ("sqrt_workers", "overwritten")
        assert (validation["evaluate"], validation["batchnorm"]) == ("validator_model", "validator")


def test_what_the_preset_sets_follows_when_figure_5_is_reduced() -> None:
    sets = ["topology.workers=2", "train.epochs=8", "train.lr_decay.epochs=[4,6]"]
    run = load_experiment(EXPERIMENTS / "fig5_async_single_validator.toml", sets).points[0].run.model_dump(mode="json")
    assert run["heterogeneity"]["delay"]["high"] == 2.0
    assert run["train"]["lr_decay"]["validator_epochs"] == run["asynchronous"]["alpha_decay"]["epochs"] == [4]


def test_the_quickstart_has_twelve_points() -> None:
    points = load_experiment(EXPERIMENTS / "quickstart.toml").points
    rules, attacks = ("average", "trimmed_mean", "phocas", "zeno"), ("none", "negative 6", "random 1")
    assert [point.label for point in points] == [f"{rule} · {attack}" for rule in rules for attack in attacks]
    run = points[0].run
    assert (run.topology.servers, run.topology.validators, run.topology.workers) == (1, 1, 8)
    assert (run.train.epochs, run.train.batch_size, run.train.local_steps) == (20, 16, 4)
    assert (run.train.optimizer.name, run.train.optimizer.lr, run.train.lr_decay.epochs) == ("nag", 0.1, (10, 15))
    assert (run.communication.participation, run.communication.skip_rate) == (1.0, 0.2)


def test_figure_7_is_what_the_paper_ran() -> None:
    *product, alone = load_experiment(EXPERIMENTS / "fig7_sync_tune_rho.toml").points
    figure4 = load_experiment(EXPERIMENTS / "fig4_sync_two_validators.toml", ["name=fig7_sync_tune_rho"]).points
    expected = next(point for point in figure4 if point.label == "zeno · random 1").run.model_dump(mode="json")
    rho = []
    for point in product:
        run = point.run.model_dump(mode="json")
        rho.append(run["validation"]["rule"].pop("rho"))
        assert run["validation"]["rule"] == {"kind": "zeno", "before": [], "skipped": "zero", "epsilon": 0.6}
        other = {"validation": 0, "description": "", "baseline": None}
        assert {**run, **other} == {**expected, **other}
    assert rho == [-0.1, -0.01, -0.001, 0.0, 0.001, 0.01, 0.1]
    assert [point.label for point in product] == [f"zeno rho {value:g}" for value in rho]

    run = alone.run.model_dump(mode="json")
    assert alone.label == "validation only"
    assert (run["topology"]["servers"], run["topology"]["validators"], run["topology"]["workers"]) == (0, 1, 0)
    assert (run["data"]["shards"], run["data"]["augment"]) == (17, True)
    train = run["train"]
    assert (train["epochs"], train["passes_per_epoch"], train["batch_size"]) == (200, 16, 32)
    assert (train["lr_decay"]["factor"], train["lr_decay"]["epochs"]) == (0.1, [100, 150])
    assert train["optimizer"] == {
        "name": "nag", "lr": 0.1, "momentum": 0.9, "betas": [0.9, 0.999], "weight_decay": 1e-4
    }  # fmt: skip
    # A reduced run keeps it as it is.
    less = load_experiment(EXPERIMENTS / "fig7_sync_tune_rho.toml", ["topology.workers=4", "data.shards=5"]).points
    assert (less[0].run.topology.workers, less[7].run.topology.workers, less[7].run.data.shards) == (4, 0, 5)


def test_fidelity_stands_for_visible_keys_under_what_the_file_sets(write: Write) -> None:
    artifact = load_experiment(write(), ["fidelity=artifact"]).points[0].run
    for path, value in PRESETS["artifact"].items():
        assert get(artifact.model_dump(), path) == value
    network = ["model.name=cifar_resnet20_v1", "data.name=synthetic"]
    text = '[validation]\nbatchnorm = "reestimated"\n'
    own = load_experiment(write(text), ["fidelity=artifact", *network]).points[0].run
    assert (own.validation.batchnorm, own.validation.evaluate) == ("reestimated", "validator_model")
    swept = load_experiment(write('[[sweep]]\nfidelity = ["artifact", "corrected"]')).points
    assert [point.run.train.first_step for point in swept] == ["overwritten", "counted"]


def asynchronous(write: Write, fidelity: str, more: str = "", *overrides: str) -> dict[str, Any]:
    sets = ["train.mode=async", "train.lr_decay.epochs=[3,5]", "validation.rule.kind=zeno++", f"fidelity={fidelity}"]
    return load_experiment(write(more), [*sets, *overrides]).points[0].run.model_dump(mode="json")


def test_artifact_sets_the_asynchronous_keys_as_the_original_had_them(write: Write) -> None:
    run = asynchronous(write, "artifact")
    settings = run["asynchronous"]
    assert (settings["absent"], settings["updates_per_refresh"], settings["epochs"]) == ("accumulate", "share", "own")
    assert settings["proximal"] == {"worker": 0.2, "validator": 0.2}
    assert (settings["alpha"], settings["alpha_decay"]) == (0.4, {"factor": 0.5, "epochs": [3]})
    assert run["train"]["lr_decay"] == steps(0.1, [3, 5], [3])
    assert run["train"]["lr_scale"] == "sqrt_workers"
    assert run["heterogeneity"]["delay"] == {"kind": "uniform", "low": 0.0, "high": 4.0}


def test_corrected_lets_everything_decay_and_adds_no_delay(write: Write) -> None:
    run = asynchronous(write, "corrected")
    settings = run["asynchronous"]
    assert (settings["updates_per_refresh"], settings["epochs"]) == ("queued", "validator")
    assert settings["alpha_decay"]["epochs"] == [3, 5]
    assert run["train"]["lr_decay"]["validator_epochs"] is None
    assert run["heterogeneity"]["delay"] == {"kind": "none"}
    assert run["train"]["lr_scale"] == "none"


def test_what_the_file_sets_goes_over_the_asynchronous_preset(write: Write) -> None:
    more = "[asynchronous]\nabsent = 'reset'\nproximal = { worker = 0.1 }\n[heterogeneity]\ndelay = { kind = 'none' }"
    run = asynchronous(write, "artifact", more, "asynchronous.alpha_decay.epochs=[7]")
    assert (run["asynchronous"]["absent"], run["heterogeneity"]["delay"]) == ("reset", {"kind": "none"})
    assert run["asynchronous"]["proximal"] == {"worker": 0.1, "validator": 0.2}
    assert run["asynchronous"]["alpha_decay"]["epochs"] == [7]


def test_a_synchronous_run_has_nothing_of_the_asynchronous_preset(write: Write) -> None:
    run = load_experiment(write(), ["fidelity=artifact", "train.lr_decay.epochs=[1]"]).points[0].run
    assert "asynchronous" not in run.model_fields_set
    assert (run.train.lr_scale, run.train.lr_decay.validator_epochs) == ("none", None)


def test_corrected_is_what_the_schema_has_by_default() -> None:
    tree = {
        "name": "x",
        "topology": {"workers": 1},
        "model": {"name": "mlp"},
        "data": {"name": "digits"},
        "train": {"epochs": 1},
    }
    plain = Run.model_validate(tree).model_dump()
    assert {path: get(plain, path) for path in PRESETS["corrected"]} == PRESETS["corrected"]


def test_a_model_of_another_backend_is_a_mistake_that_names_it() -> None:
    tree = {
        "name": "x",
        "topology": {"workers": 1},
        "model": {"name": "cifar_wideresnet16_10"},
        "data": {"name": "synthetic"},
        "train": {"epochs": 1},
    }
    (problem,) = contradictions(Run.model_validate(tree))
    assert problem.path == ("model", "name")
    assert problem.message.startswith(
        'cifar_wideresnet16_10 is not among the models of "torch" (alexnet, cifar_resnet8'
    )
    assert problem.message.endswith('use backend = "mxnet"')
    tree["model"]["backend"] = "mxnet"
    assert contradictions(Run.model_validate(tree)) == []
    tree["train"]["optimizer"] = {"name": "muon"}
    (problem,) = contradictions(Run.model_validate(tree))
    assert problem.path == ("train", "optimizer", "name")
    assert str(problem.message).startswith('muon is not among the optimizers of "mxnet": use backend = "torch"')


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("seed = [1, 2]", ["seed 1", "seed 2"]),
        ("'validation.rule' = [{kind='zeno', rho=0}, {kind='zeno', rho=0.1}, {kind='average'}]",
         ["zeno rho 0", "zeno rho 0.1", "average"]),
        ("'validation.rule' = [{kind='zeno'}, {kind='zeno', rho=0.1}]", ["zeno rho -0.001", "zeno rho 0.1"]),
        ("attack = [{kind='random', rate=0.1}, {kind='random', rate=0.3}]", ["random 1 rate 0.1", "random 1 rate 0.3"]),
        ("'model.name' = ['cnn', 'mlp']", ["cnn", "mlp"]),
        ("'train.optimizer.lr' = [2.0, 1e30]", ["lr 2", "lr 1e+30"]),
        ("'topology.colocate_validators' = [true, false]", ["colocate_validators true", "colocate_validators false"]),
        ("'train.lr_decay.epochs' = [[1], [1, 2]]", ["epochs [1]", "epochs [1, 2]"]),
        ("'train.epochs' = [2, 3]\n'train.warmup.epochs' = [0, 1]",
         ["train.epochs 2 · train.warmup.epochs 0", "train.epochs 3 · train.warmup.epochs 1"]),
        ("train = [{epochs=1}, {epochs=2, optimizer={lr=0.2}}]",
         ["train epochs 1 optimizer.lr 0.1", "train epochs 2 optimizer.lr 0.2"]),
    ],
)  # fmt: skip
def test_labels_say_what_sets_points_apart(write: Write, sweep: str, expected: list[str]) -> None:
    assert [point.label for point in load_experiment(write(f"[[sweep]]\n{sweep}")).points] == expected


@pytest.fixture(scope="module")
def figure_3() -> LoadedExperiment:
    return load_experiment(FIG3)


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ([], list(range(16))),
        (["3"], [3]),
        (["0-3,7"], [0, 1, 2, 3, 7]),
        (["14-99"], [14, 15]),
        (["zeno"], [12, 13, 14, 15]),
        (["Zeno · Negative"], [13]),
        (["random 1"], [2, 6, 10, 14]),
        (["validation.rule=zeno"], [12, 13, 14, 15]),
        (["validation.rule.kind=zeno,attack.scale=8"], [3, 7, 11, 12, 13, 14, 15]),
        (["validation.rule.kind=zeno", "attack.scale=8"], [15]),
        (["attack={kind='negative'}"], [1, 5, 9, 13]),
        (["0-7, attack=none"], [0, 1, 2, 3, 4, 5, 6, 7, 8, 12]),
        (["0-7", "attack=none"], [0, 4]),
        (["zeno,phocas", "attack=none,random 1", "8-13"], [8, 10, 12]),
        (["train.lr_decay.epochs=[100, 150]", "5"], [5]),
        (["topology.colocate_validators=false", "2"], [2]),
    ],
)
def test_commas_widen_and_further_selectors_narrow(
    figure_3: LoadedExperiment, selectors: list[str], expected: list[int]
) -> None:
    assert [point.index for point in select(figure_3.points, selectors)] == expected


def test_a_run_is_selected_by_the_start_of_its_id(figure_3: LoadedExperiment) -> None:
    for point in figure_3.points:
        assert point in select(figure_3.points, [point.run_id[:6]])
        assert select(figure_3.points, [point.run_id]) == (point,)


@pytest.mark.parametrize(
    "selectors",
    [
        ["16"],
        ["krum"],
        ["20-30"],
        ["3-1"],
        ["attack.scale=7"],
        ["seed=true"],
        ["3,krum"],
        [","],
        ["zeno", "average"],
        ["3", ""],
    ],
)
def test_a_selector_that_fits_nothing_lists_the_points(figure_3: LoadedExperiment, selectors: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        select(figure_3.points, selectors)
    assert all(f"{point.run_id}  {point.label}" in str(caught.value) for point in figure_3.points)


@pytest.mark.parametrize(
    ("sweep", "only", "label", "mistake"),
    [
        # A wrong value; a contradiction; a wrong value inside a table.
        ("'validation.rule.kind' = ['zeno', 'zenno']", "zeno", "zeno", "zenno"),
        ("'topology.workers' = [1, 4]\n'heterogeneity.slow.factor' = [2, 1]", "workers 4", "workers 4", "an effect"),
        ("attack = [{kind='none'}, {kind='random', rate=3}]", "attack=none", "none", "attack.rate"),
    ],
)
def test_mistakes_of_points_that_are_left_out_do_not_count(
    write: Write, sweep: str, only: str, label: str, mistake: str
) -> None:
    path = write(f"[[sweep]]\n{sweep}")
    with pytest.raises(SpecError, match=mistake):
        load_experiment(path)
    with pytest.raises(SpecError, match="1 mistake"):
        load_experiment(path, only=["no such point"])
    experiment = load_experiment(path, only=[only])
    (point,) = experiment.chosen
    assert (point.label.split(" · ")[0], experiment.count) == (label, 2)
    other = 1 - point.index
    with pytest.raises(SpecError, match=mistake):
        load_experiment(path, only=[str(other)])


def test_a_condition_on_an_unknown_key_names_the_nearest(figure_3: LoadedExperiment) -> None:
    with pytest.raises(SpecError, match=r"unknown key: did you mean validation\.rule\?"):
        select(figure_3.points, ["rule=zeno"])


def test_what_is_unusual_in_an_attack_is_in_its_label(write: Write) -> None:
    attacks = "[{kind='none'}, {kind='random', rate=0.3}, {kind='random', rate=0.3, scope='worker'}]"
    points = load_experiment(write(f"[[sweep]]\nattack = {attacks}")).points
    assert [p.label for p in points] == ["none", "random 1 rate 0.3 scope block", "random 1 rate 0.3 scope worker"]
    (alike,) = load_experiment(write("[[sweep]]\nattack = [{kind='negative', scale=6, rate=0.5}]")).points
    assert alike.label == "negative 6 rate 0.5"
