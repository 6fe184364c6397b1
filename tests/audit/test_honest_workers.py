"""Audits of honest workers find nothing, and change nothing."""

import numpy as np
import pytest
from audited import audited, audits_of, play_audited
from executed import lines, run_here
from interrupted import model

from hpcps.registry import active

CLASSES = [{"name": "slow", "workers": [3], "seconds": 0.5}, {"name": "fast", "workers": [0, 1, 2], "seconds": 0.1}]
POLICY = {"simulation": {"kind": "modelled"}, "heterogeneity": {"classes": CLASSES}}
STEPS = {"batch_size": 16, "epochs": 3, "device": "cpu"}


def compressed(**keys):
    """Return the table of a compressor."""
    return {"communication": {"compression": keys}}


CASES = {
    **{kind: compressed(kind=kind) for kind in active().of("compressors") if kind != "none"},
    "ef21": compressed(kind="topk", memory="ef21"),
    "models-too": compressed(kind="qsgd", direction="both"),
    "skips": {"communication": {"participation": 0.6, "skip_rate": 0.4}},
    "skips-encoded": {"communication": {"participation": 0.6, "skip_rate": 0.4, "compression": {"kind": "topk"}}},
    "two-validators": {"topology": {"workers": 5, "validators": 2, "servers": 2}},
    "partitions": {"topology": {"workers": 4, "servers": 2}, "transport": {"kind": "inproc", "partition": 2048}},
    "adam": {"train": {**STEPS, "local_steps": 2, "optimizer": {"name": "adam", "lr": 0.01}}},
    "decay": {"train": {**STEPS, "local_steps": 3, "lr_decay": {"epochs": [1, 2]}, "warmup": {"epochs": 2}}},
    "artifact": {"fidelity": "artifact"},
    "dropout": {"model": {"dropout": 0.3}},
    "delays": {"heterogeneity": {"delay": {"kind": "lognormal", "median": 2.0}}},
    "zeno": {"validation": {"rule": {"kind": "zeno"}, "audit": {"share": 0.5}}},
    "esync": {**POLICY, "train": {**STEPS, "local_steps": {"kind": "esync"}}},
    "dylu": {**POLICY, "train": {**STEPS, "local_steps": {"kind": "dylu", "most": 4}}},
    "weights": {
        "topology": {"workers": 5, "validators": 2, "servers": 2},
        "validation": {"rule": {"kind": "median", "before": [{"kind": "clipping"}]}, "weights": [1, 4, 2, 2, 1]},
    },
    "evaluator": {"topology": {"workers": 4, "evaluators": 1}},
    "batchnorm": {
        "model": {"name": "cifar_resnet8_v1"},
        "data": {"name": "synthetic", "limit": 60, "test_limit": 8},
        "train": {**STEPS, "epochs": 2, "batch_size": 4, "local_steps": 1},
    },
}


@pytest.mark.sample(5, 20)
@pytest.mark.parametrize("case", CASES)
def test_no_honest_worker_is_excluded(case, tmp_path):
    run = audited(**CASES[case])
    audits, excluded = play_audited(run, tmp_path)
    assert len(audits) >= 5
    assert len({worker for _, worker in audits}) > 1
    assert not excluded


def test_the_steps_of_audits_take_time_in_a_simulation(tmp_path):
    """A validator of 3 workers takes their steps after its own, from the second round on."""
    times, step = {}, {"kind": "constant", "seconds": 0.1}
    for share in (0.0, 1.0):
        run_here(audited(share, workers=3, simulation={"kind": "modelled", "step": step}), tmp_path / str(share))
        (end,) = lines(tmp_path / str(share), "server-0", "end")
        times[share] = end["time"]
    rounds = len(lines(tmp_path / "1.0", "server-0", "round"))
    assert times[0.0] == pytest.approx(rounds * 0.2)
    assert times[1.0] == pytest.approx(rounds * 0.2 + (rounds - 1) * 3 * 0.2)


def test_audits_do_not_change_the_result(tmp_path):
    communication = {"participation": 0.7, "skip_rate": 0.3}
    directories = [run_here(audited(share, communication=communication), tmp_path / str(share)) for share in (0.0, 1.0)]
    audits, excluded = audits_of(directories[1])
    rounds = {of for of, _ in audits}
    assert len(audits) == 4 * len(rounds)
    assert not excluded
    assert not audits_of(directories[0])[0]
    assert np.array_equal(model(directories[0].path), model(directories[1].path))
