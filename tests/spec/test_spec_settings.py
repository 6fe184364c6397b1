"""Which settings a label states, which a heading, and how all of them compare with their defaults."""

from collections.abc import Callable
from pathlib import Path

from hpcps.spec.load import LoadedExperiment, load_experiment
from hpcps.spec.settings import of_headings, settings

RULES = """
[[sweep]]
"validation.rule" = [
    { kind = "average" },
    { kind = "krum", f = 2, before = [{ kind = "nnm", f = 1 }] },
    { kind = "zeno", rho = 0.1 },
]
"""
SENDING = """
[communication]
skip_rate = 0.2
compression = { kind = "topk", k = 0.1, memory = "ef21" }

[server]
optimizer = { kind = "momentum" }
"""


def headings(experiment: LoadedExperiment) -> dict[str, tuple[str, ...]]:
    runs = [point.spec["run"] for point in experiment.points]
    swept = [[tuple(key.split(".")) for key in point.swept] for point in experiment.points]
    found = of_headings(runs, swept)
    return {point.label: texts for point, texts in zip(experiment.points, found, strict=True)}


def test_a_label_names_the_preaggregators_and_the_heading_the_other_values(write: Callable[..., Path]) -> None:
    found = headings(load_experiment(write(SENDING + RULES), ["topology.workers=8"]))
    shared = ("compression topk memory ef21 k 0.1", "server optimizer momentum", "skip rate 0.2")
    assert found == {
        "average": shared,
        "krum before [nnm f 1]": ("krum f 2", *shared),
        "zeno": ("zeno rho 0.1", *shared),
    }


def test_a_label_names_what_a_compressor_remembers(write: Callable[..., Path]) -> None:
    tables = """
[[sweep]]
"communication.compression" = ["none", { kind = "topk", k = 0.1, memory = "ef21" }, { kind = "int8" }]
"""
    found = headings(load_experiment(write(tables)))
    assert found == {"none": (), "topk memory ef21": ("topk k 0.1",), "int8": ()}


def test_a_heading_names_what_is_not_swept(write: Callable[..., Path]) -> None:
    tables = """
[validation]
rule = { kind = "krum", f = 2, before = [{ kind = "nnm" }] }

[[sweep]]
"validation.rule.f" = [1, 2]
"""
    found = headings(load_experiment(write(tables), ["topology.workers=8"]))
    assert found == dict.fromkeys(("f 1", "f 2"), ("rule krum before [nnm]",))


def test_a_plain_file_has_nothing_to_name(write: Callable[..., Path]) -> None:
    assert [*headings(load_experiment(write(""))).values()] == [()]
    assert [*headings(load_experiment(write(""), ["fidelity=artifact"])).values()] == [()], "the heading says artifact"


def test_settings_have_their_defaults(write: Callable[..., Path]) -> None:
    (point,) = load_experiment(write(SENDING)).points
    found = {setting.key: setting for setting in settings(point.spec["run"])}
    assert (found["communication.skip_rate"].value, found["communication.skip_rate"].default) == (0.2, 0.0)
    changed = {key for key, setting in found.items() if setting.changed}
    assert {"communication.compression.kind", "communication.compression.k", "server.optimizer.kind"} <= changed
    assert changed.isdisjoint({"validation.rule.kind", "data.shards", "data.split.kind", "train.lr_decay.factor"})
