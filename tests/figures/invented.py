"""Results that look like real ones, written by the real record writer: a stand-in for hours of training."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter

RULES = ("average", "trimmed_mean", "phocas", "zeno")
ATTACKS: tuple[dict[str, Any], ...] = (
    {"kind": "none"},
    {"kind": "negative", "scale": 6.0, "rate": 0.2, "scope": "block"},
    {"kind": "random", "scale": 1.0, "rate": 0.2, "scope": "block"},
    {"kind": "randomscale", "scale": 8.0, "rate": 0.2, "scope": "block"},
)
LEVEL = {
    ("none", rule): level for rule, level in zip(RULES, (0.905, 0.90, 0.895, 0.89), strict=True)
} | {
    ("negative", "average"): 0.1, ("negative", "trimmed_mean"): 0.62, ("negative", "phocas"): 0.80,
    ("random", "average"): 0.22, ("random", "trimmed_mean"): 0.55, ("random", "phocas"): 0.66,
    ("randomscale", "average"): 0.35, ("randomscale", "trimmed_mean"): 0.5, ("randomscale", "phocas"): 0.7,
    ("none", "naive_async"): 0.9, ("none", "zeno++"): 0.89, ("random", "naive_async"): 0.15, ("random", "zeno++"): 0.87,
    ("negative", "zeno"): 0.885, ("random", "zeno"): 0.88, ("randomscale", "zeno"): 0.887,
}  # fmt: skip


def invent(
    results: Path,
    *,
    rules: Sequence[str] = RULES,
    attacks: Sequence[dict[str, Any]] = ATTACKS,
    seeds: Iterable[int] = (1,),
    epochs: int = 20,
    workers: int = 3,
    validators: int = 1,
    mode: str = "sync",
    changes: dict[str, dict[str, Any]] | None = None,
    unfinished: Sequence[str] = (),
    first: int = 0,
) -> None:
    """Write run folders of a sweep over rules and attacks; `changes` go over tables of the spec, table by table.

    In an asynchronous one server 0 applies an update of each worker in each round; worker w's are of staleness w.
    """
    index = first
    for seed in seeds:
        for rule in rules:
            for attack in attacks:
                run = {
                    "name": results.name,
                    "seed": seed,
                    "fidelity": "artifact",
                    "topology": {"servers": 1, "validators": validators, "workers": workers},
                    "model": {"name": "cnn"},
                    "data": {"name": "cifar10", "limit": None},
                    "train": {"mode": mode, "epochs": epochs, "batch_size": 32},
                    "communication": {"participation": 0.5, "skip_rate": 0.2},
                    "validation": {"rule": {"kind": rule}},
                    "attack": attack,
                }
                for table, values in (changes or {}).items():
                    run[table] = {**run.get(table, {}), **values}  # type: ignore[dict-item]
                label = f"{rule} · {attack['kind']}"
                spec = {
                    "run_id": f"{index:010x}",
                    "label": label,
                    "index": index,
                    "swept": {"validation.rule": {"kind": rule}, "attack": attack},
                    "run": run,
                }
                write_run(RunDirectory(results / "runs" / f"{index:010x}"), spec, epochs, label in unfinished)
                index += 1


def rewrite_spec(run: Path, spec: dict[str, Any]) -> None:
    """Change the `spec.json` of a run as if it had been executed with it: a run that is done has its new checksum."""
    (run / "spec.json").write_text(json.dumps(spec))
    directory = RunDirectory(run)
    if (run / "DONE").exists():
        directory.finish(directory.wall or 0.0)


def pairs(validator: int, r: int) -> dict[str, int]:
    """What a validator counts in round r: of 20 pairs received 16 were sent, and it accepts more as time goes on."""
    accepted = 8 + validator + r % 5 + r // 8
    return {
        "received_pairs": 20, "sent_pairs": 16, "skipped_pairs": 4, "accepted_pairs": accepted,
        "accepted_sent_pairs": accepted - 2,
    }  # fmt: skip


PROVENANCE = {
    "git": {"commit": "c0ffee", "uncommitted": False, "note": ""},
    "machine": {"host": "invented", "cpu": "none", "cores": 2, "usable_cores": 2},
    "packages": {"numpy": "2.0.0"},
}


def write_run(directory: RunDirectory, spec: dict[str, Any], epochs: int, unfinished: bool = False) -> None:
    """Write one run folder."""
    directory.create(spec)
    directory.write_provenance(PROVENANCE)
    run = spec["run"]
    rule, attack = run["validation"]["rule"]["kind"], run["attack"]["kind"]
    noise = np.random.Generator(np.random.Philox([run["seed"], spec["index"]]))
    level = LEVEL[attack, rule]
    epochs = epochs // 2 if unfinished else epochs
    rounds = 2 * epochs
    for w in range(run["topology"]["workers"]):
        with _writer(directory, spec, "worker", w) as (record, clock):
            for r in range(rounds):
                clock[0] += 1.5 + 0.1 * noise.random()
                record.write(
                    "round", round=r, step=8 * (r + 1), epoch=(r + 1) / 2, loss=2.0 / (r + 1), participated=bool(r % 2),
                    bytes_sent=870_000 if r % 2 else 96, bytes_received=1_090_000, compute=1.2, cpu=1.3,
                )  # fmt: skip
    with _writer(directory, spec, "server", 0) as (record, clock):
        for r in range(rounds):
            clock[0] += 1.55
            sizes = {"bytes_sent": 4_360_000, "bytes_received": 1_090_000}
            if run["train"]["mode"] == "sync":
                record.write("round", round=r, **sizes, cpu=0.1)
                continue
            for w in range(run["topology"]["workers"]):
                record.write("applied", round=r, kind="apply", reader=f"worker-{w}", staleness=w, blocks=6, **sizes)
            record.write("applied", round=r, kind="read", reader="worker-0")
    for v in range(1, run["topology"]["validators"]):
        with _writer(directory, spec, "validator", v) as (record, clock):
            for r in range(rounds):
                clock[0] += 1.55
                record.write("round", round=r, step=8 * (r + 1), bytes_sent=1_090_000, cpu=1.0, **pairs(v, r))
    with _writer(directory, spec, "validator", 0) as (record, clock):
        for r in range(rounds):
            clock[0] += 1.55 + (0.3 if rule == "zeno" else 0.0)
            record.write(
                "round", round=r, step=8 * (r + 1), epoch=(r + 1) / 2, participants=[0, 2], absent=[1], compute=1.0,
                bytes_sent=1_090_000, cpu=1.1, acceptance_rate=0.8, **pairs(0, r),
            )  # fmt: skip
            if r % 2:
                epoch = (r + 1) // 2
                rise = 1 - 0.88 * np.exp(-4.0 * epoch / epochs)
                wobble = noise.normal(0, 0.03 if attack != "none" and rule != "zeno" else 0.008)
                accuracy = float(np.clip(level * rise + wobble, 0.0, 1.0))
                broken = level == 0.1 and epoch > epochs // 4
                if broken and not epoch - 1 > epochs // 4:
                    record.write("diverged", round=r + 1, epoch=epoch)
                record.write(
                    "evaluation", round=r + 1, step=8 * (r + 1), epoch=epoch, accuracy=0.1 if broken else accuracy,
                    loss=float("inf") if broken else 2.3 - accuracy, samples=10000,
                    acceptance_rate_epoch=0.8, acceptance_rate_cumulative=0.81,
                )  # fmt: skip
        if not unfinished:
            record.write("end", reason="finished", round=rounds)
    if not unfinished:
        directory.finish(1.55 * rounds)


class _writer:  # noqa: N801 (a context manager, used like a function)
    """A record writer whose clock the caller moves."""

    def __init__(self, directory: RunDirectory, spec: dict[str, Any], role: str, index: int) -> None:
        self._clock = [0.0]
        self._record = RecordWriter(directory.path, spec["run_id"], role, index, "n01", clock=lambda: self._clock[0])

    def __enter__(self) -> tuple[RecordWriter, list[float]]:
        self._record.write("start", pid=1, threads=1, device="cpu")
        return self._record, self._clock

    def __exit__(self, *_: object) -> None:
        self._record.close()
