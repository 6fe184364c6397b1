"""The identity of a run: a hash of everything that affects its results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from hpcps.compression import PowerSGD, Topk
from hpcps.policies import ESync
from hpcps.registry import Config, OneOf
from hpcps.rules import GeometricMedian
from hpcps.spec.plugins import used
from hpcps.spec.schema import Run
from hpcps.spec.simulation import NoSimulation
from hpcps.spec.validate import Shared

SCHEMA_VERSION = 1
"""Raise it when a default or the meaning of a key changes; all runs then get new ids. A new key does not need it. A
change of the results of only some runs goes into `revisions`."""

IRRELEVANT = frozenset(
    {
        *("name", "description", "baseline", "plugins", "fidelity", "data.dir", "train.mps", "checkpoint"),
        *("callbacks", "tracking"),
        "train.stop_when_diverged",
        *("transport.partition", "transport.timeout", "transport.shared_memory", "transport.interface"),
        "transport.device_buffers",
        *("transport.port", "transport.heartbeat_timeout", "transport.resend"),
        *("survive.after", "survive.servers", "survive.spares", "survive.wait"),
    }
)
"""Keys and tables that do not affect results; `fidelity` acts only through the keys that it sets."""

TIMED = frozenset({"transport.partition"})
"""Those of `IRRELEVANT` that affect the simulated time, which is a result of a simulation."""

REMEMBERED = frozenset({"checkpoint.every", "checkpoint.rounds", "checkpoint.keep"})
"""Those of `IRRELEVANT` that affect results with `survive.residual = "checkpoint"`: replacements begin with what a
checkpoint has."""


@cache
def affects_results(key: str, *, simulated: bool, remembers: bool = False) -> bool:
    """Tell whether a dotted key, or one of its table, affects the results of a run.

    Args:
        key: the key.
        simulated: whether the run has a simulation.
        remembers: whether its replacements begin with what a checkpoint has.
    """
    if simulated and key in TIMED:
        return True
    if remembers and any(each == key or each.startswith(f"{key}.") for each in REMEMBERED):
        return True
    key = key.partition("[")[0]  # of a list
    return not any(key == name or key.startswith(f"{name}.") for name in IRRELEVANT)


def run_id(run: Run, shared: Shared | None = None) -> str:
    """Return the run's id: ten hexadecimal digits that equal specs share.

    Only values that differ from their defaults enter, so a key that is added later, with a default that leaves
    everything as it was, does not change the id of any run. Of components that are not built in, the text of the plugin
    or the version of the package enters. The registry with which the run was validated must be active.

    Args:
        run: the run.
        shared: what it has in common with other points of its file.
    """
    content: dict[str, Any] = {"schema": SCHEMA_VERSION, "run": _changes(run, "", run, shared or Shared())}
    foreign = {key: entry.origin.identity for key, entry in used(run).items() if entry.origin.identity}
    if foreign := {key: foreign[key] for key in foreign if affects_results(key, simulated=False)}:
        content["components"] = foreign
    if revised := revisions(run):
        content["revisions"] = revised
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:10]


def _changes(table: Config, prefix: str, run: Run, shared: Shared) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    derived, simulated = run.derived(), not isinstance(run.simulation, NoSimulation)
    remembers = run.survive.residual == "checkpoint"
    for key in _keys(type(table), prefix, simulated=simulated, remembers=remembers):
        value = getattr(table, key.name)
        value = value.same_results() if isinstance(value, Config) else value
        if value is key.default or value == key.default:
            continue
        if prefix == "data." and key.name in derived and value == derived[key.name]:
            continue
        path = f"{prefix}{key.name}."
        if isinstance(value, tuple) and any(isinstance(item, Config) for item in value):
            kinds = [{"kind": item.kind} if "kind" in type(item).model_fields else {} for item in value]
            listed = [_changes(item, path, run, shared) | kind for item, kind in zip(value, kinds, strict=True)]
            changes[key.name] = listed
            continue
        if not isinstance(value, Config):
            changes[key.name] = _canonical(value)
            continue
        inner = shared.of(
            value, (path, simulated, remembers, *derived.items()), partial(_changes, value, path, run, shared)
        )
        tag = getattr(value, key.tag, key.usual)
        tagged = inner if tag == key.usual else {**inner, key.tag: tag}
        if tagged:
            changes[key.name] = tagged[key.tag] if key.shorthand and len(tagged) == 1 else tagged
    return changes


class _Key(NamedTuple):
    """A key that affects results.

    If its value is a component, the key `tag` selects it, and `usual` is the component of a table without that key.
    """

    name: str
    default: object
    tag: str
    shorthand: bool
    usual: str


@cache
def _keys(table: type[Config], prefix: str, *, simulated: bool, remembers: bool) -> list[_Key]:
    found = []
    for name, field in table.model_fields.items():
        kind = next((each.kind for each in field.metadata if isinstance(each, OneOf)), None)
        tag = kind.tag if kind else str(field.discriminator or "")
        if affects_results(prefix + name, simulated=simulated, remembers=remembers):
            usual = kind.default if kind else ""
            found.append(_Key(name, field.default, tag, kind is not None and kind.shorthand, usual))
    return found


def _canonical(value: object) -> Any:
    """Return equal numbers in the same form: 1.0 as 1, and no negative zero."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (tuple, list)):
        return [_canonical(item) for item in value]
    return value


def _first_step(run: Run) -> bool:
    """Validators take the first step before they have the model, also under rules that need no reference."""
    combines = run.topology.validators > 0 and not run.topology.alone
    return run.train.first_step == "overwritten" and combines and "reference" not in run.validation.rule.requires


def _held_out_shard(run: Run) -> bool:
    """The shard of the validators is drawn uniformly; the split assigns the remaining samples to the other shards."""
    return run.holds_out


def _esync_first_round(run: Run) -> bool:
    """In the first round of a run with esync, every role takes one step."""
    return isinstance(run.train.policy, ESync)


def _topk_order(run: Run) -> bool:
    """Of equal magnitudes topk sends the first ones, not those that BytePS's heap has."""
    compressor = run.communication.compression
    return isinstance(compressor, Topk) and compressor.order == "index"


def _powersgd_sums(run: Run) -> bool:
    """The sums of powersgd have a fixed order, not that of BLAS."""
    return isinstance(run.communication.compression, PowerSGD)


def _geometric_median(run: Run) -> bool:
    """The geometric median is the minimum; steps ended before it where an update was near the start, or huge."""
    rule = run.validation.rule
    return isinstance(rule, GeometricMedian) and rule.tolerance > 0


def _quorum_checkpoints(run: Run) -> bool:
    """A checkpoint of a run with a quorum does not change which rounds wait for late workers."""
    return run.has_quorum


def _measured_statistics(run: Run) -> bool:
    """Samples whose facts state no mean and std are normalised with those of the training samples."""
    return run.data.normalise and run.data.facts.measured


REVISIONS: Mapping[str, Callable[[Run], bool]] = {
    "first-step": _first_step,
    "held-out-shard": _held_out_shard,
    "esync-first-round": _esync_first_round,
    "topk-order": _topk_order,
    "powersgd-sums": _powersgd_sums,
    "quorum-checkpoints": _quorum_checkpoints,
    "geometric-median": _geometric_median,
    "measured-statistics": _measured_statistics,
}
"""The name of each change, and the runs that it affects. Do not edit or remove entries: run ids depend on them."""


def revisions(run: Run) -> list[str]:
    """Return the names of the changes that affect a run, in alphabetical order."""
    return sorted(name for name, concerns in REVISIONS.items() if concerns(run))
