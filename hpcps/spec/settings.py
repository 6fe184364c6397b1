"""The settings of runs beside their defaults: all of them for a review, and those that a heading names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcps.registry import active
from hpcps.spec.keys import Table, root
from hpcps.spec.label import Defaults, said_by_labels, value_words
from hpcps.spec.presets import ASYNC_PRESETS, PRESETS, Derived
from hpcps.spec.sweep import KeyPath
from hpcps.spec.tree import Tree, get

COMPONENTS: Mapping[str, str] = {
    "validation.rule": "rule",
    "attack": "attack",
    "communication.compression": "compression",
    "server.optimizer": "server optimizer",
    "data.split": "split",
    "train.local_steps": "local steps",
    "heterogeneity.delay": "delay",
}
"""The components that decide what a line of a figure means, each with its noun."""

_ELSEWHERE = frozenset(
    {
        *("name", "description", "baseline", "plugins", "seed", "fidelity", "topology", "transport", "model", "data"),
        *("train.epochs", "train.passes_per_epoch", "train.batch_size", "train.optimizer", "train.lr_decay"),
        *("train.warmup", "train.lr_scale", "train.threads", "train.device", "train.mps", "train.stop_when_diverged"),
        *("checkpoint", "callbacks", "tracking", "simulation"),
    }
)
"""Tables and keys that a heading describes in other words, and those that say how all lines alike are trained."""

_NAMED = frozenset({"data.split", "data.validation_split"})
"""Keys in the tables of `_ELSEWHERE` that a heading names."""


_READ_WHOLE = frozenset({"survive"})
"""Tables without whose name their keys say nothing."""


@dataclass(frozen=True)
class Setting:
    """One value of a run.

    Attributes:
        key: its dotted key.
        value: the value, as in JSON.
        default: the value of a file that does not set the key, with the same `fidelity`; None without a default.
    """

    key: str
    value: Any
    default: Any

    @property
    def changed(self) -> bool:
        """Whether it differs from the default."""
        nothing = self.default is None and self.value in (None, [])
        return not nothing and bool(self.value != self.default)


def settings(run: Tree, defaults: Defaults | None = None) -> list[Setting]:
    """Return all values of a run in the order of the file.

    Args:
        run: the run as in its `spec.json`.
        defaults: those of components that are not in the active registry.
    """
    presets = dict(PRESETS.get(str(run.get("fidelity")), {}))
    if get(run, ("train", "mode")) == "async":
        presets |= ASYNC_PRESETS.get(str(run.get("fidelity")), {})
    usual = {".".join(path): v.of(run) if isinstance(v, Derived) else v for path, v in presets.items()}
    if workers := get(run, ("topology", "workers")):
        usual["data.shards"] = workers + 1
    facts = getattr(active().of("datasets").get(str(get(run, ("data", "name")))), "facts", None)
    usual["data.augment"] = getattr(facts, "augment", None)
    return list(_walk(run, root(), "", usual, defaults or {}))


def _walk(
    tree: Tree, table: Table | None, prefix: str, usual: Mapping[str, Any], defaults: Defaults
) -> Iterator[Setting]:
    for name, value in tree.items():
        path, key = prefix + name, table.keys.get(name) if table is not None else None
        default = usual.get(path, key.default if key else None)
        if not isinstance(value, dict):
            if isinstance(default, dict):
                default = default.get("kind", default)
            yield Setting(path, value, default)
            continue
        if key is None or not key.tagged:
            yield from _walk(value, key.tables[0] if key and key.tables else None, f"{path}.", usual, defaults)
            continue
        kind, of_default = str(value.get("kind")), default if isinstance(default, dict) else {}
        inner, recorded = key.table(kind), defaults.get((name, kind), {})
        for leaf, each in value.items():
            if leaf == "kind":
                yield Setting(f"{path}.kind", each, of_default.get("kind"))
            else:
                plain = inner.keys[leaf].default if inner and leaf in inner.keys else recorded.get(leaf)
                yield Setting(f"{path}.{leaf}", each, usual.get(f"{path}.{leaf}", plain))


def of_headings(
    runs: Sequence[Tree],
    swept: Sequence[Sequence[KeyPath]],
    defaults: Defaults | None = None,
    described: Collection[str] = (),
) -> list[tuple[str, ...]]:
    """Return for each run the settings that differ from a plain file and that its label does not state.

    Args:
        runs: the runs, as in their `spec.json`.
        swept: the keys of the label of each run.
        defaults: those of components that are not in the active registry.
        described: further keys that the text around describes.

    Returns:
        Texts such as `rule krum before [nnm] f 2` and `skip rate 0.2`, those of components first.
    """
    stated = said_by_labels(runs, swept, defaults)
    return [tuple(_texts(run, said.union(described), defaults or {})) for run, said in zip(runs, stated, strict=True)]


def _texts(run: Tree, said: frozenset[str], defaults: Defaults) -> Iterator[str]:
    found = {setting.key: setting for setting in settings(run, defaults)}
    for path, noun in COMPONENTS.items():
        inside = {key: found.pop(key) for key in [*found] if key == path or key.startswith(f"{path}.")}
        text = _component(path, noun, inside, said, defaults)
        if text:
            yield text
    for key, setting in found.items():
        below = key in said or (_within(key, _ELSEWHERE) and not _within(key, _NAMED))
        if setting.changed and not below and setting.value is not None:
            words = key.split(".") if _within(key, _READ_WHOLE) else key.split(".")[1:]
            yield f"{' '.join(words).replace('_', ' ')} {value_words(setting.value, defaults)}"


def _component(path: str, noun: str, inside: Mapping[str, Setting], said: frozenset[str], defaults: Defaults) -> str:
    """Return a component with the values that are not defaults, without those that the label states."""
    whole, kind = inside.get(path), inside.get(f"{path}.kind")
    if kind is None:  # a plain value in the place of a table
        return f"{noun} {value_words(whole.value, defaults)}" if whole and whole.changed and path not in said else ""
    stated, scale = kind.key in said, f"{path}.scale"
    leaves = [
        setting
        for key, setting in inside.items()
        if setting is not kind and key not in said and setting.value is not None
        if setting.changed or (key == scale and not stated)
    ]
    ordered = sorted(leaves, key=lambda setting: setting.key != scale)
    words = [
        f"{setting.key.removeprefix(f'{path}.')} {value_words(setting.value, defaults)}".removeprefix("scale ")
        for setting in ordered
    ]
    if not words and (stated or not kind.changed):
        return ""
    return " ".join([*([] if stated else [noun]), str(kind.value), *words])


def _within(key: str, names: frozenset[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)
