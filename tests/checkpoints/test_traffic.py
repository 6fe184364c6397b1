"""Every byte that a run sends is recorded once where it is sent and once where it is received, in the right epoch."""

import numpy as np
import pytest
from interrupted import model, play, records, small

from hpcps.execution import inprocess
from hpcps.records.collect import collect
from hpcps.records.run_directory import RunDirectory
from hpcps.transport.inproc import Exchange

ZENO = {"rule": {"kind": "zeno", "rho": -0.01}}
AVERAGED = {
    "topology": {"workers": 2},
    "model": {"name": "cifar_resnet20_v1"},
    "data": {"name": "synthetic", "limit": 96, "test_limit": 20},
    "train": {"epochs": 2, "batch_size": 8, "local_steps": 1},
    "validation": {"batchnorm": "averaged"},
}


def asynchronous(servers, validators, **more):
    return {
        "topology": {"servers": servers, "validators": validators, "workers": 4},
        "train": {"mode": "async", "epochs": 6, "batch_size": 16, "local_steps": 3},
        "validation": {"rule": {"kind": "naive_async"}},
        "heterogeneity": {"delay": {"kind": "lognormal", "median": 1.0}},
        **more,
    }


SYNC = {
    "two-validators": {"topology": {"servers": 2, "validators": 2, "workers": 4}, "validation": ZENO},
    "no-validator": {"topology": {"servers": 3, "validators": 0}},
    "partitions-two-validators": {
        "topology": {"servers": 2, "validators": 2, "workers": 4},
        "transport": {"partition": 2048},
    },
    "averaged-statistics": AVERAGED,
}
ASYNC = {"async": asynchronous(1, 1)}


def stop_after(looks):
    """Return what asks a run to stop once it has looked so many times whether it shall."""
    answers = iter([False] * looks)
    return lambda: next(answers, True)


def traffic(folder):
    """Return the bytes sent and received in all lines of all attempts."""
    lines = [line for file in RunDirectory(folder).records for line in records(folder, file.stem)]
    return [sum(line.get(f"bytes_{way}", 0) for line in lines) for way in ("sent", "received")]


@pytest.fixture
def under_way(monkeypatch):
    """Return what tells how many bytes were sent, in all exchanges so far, that nobody took before the end."""
    exchanges = []

    class Watched(Exchange):
        def __init__(self):
            super().__init__()
            exchanges.append(self)

    monkeypatch.setattr(inprocess, "Exchange", Watched)

    def size():
        letters = (letter for exchange in exchanges for box in exchange._boxes.values() for letter in box)
        return sum(len(header) + len(payload or b"") for _, header, payload in letters)

    return size


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("case", [*SYNC, *ASYNC])
def test_what_is_sent_is_received(case, every, under_way, tmp_path):
    run = small(**{**SYNC, **ASYNC}[case], checkpoint={"every": every})
    assert play(run, tmp_path)
    sent, received = traffic(tmp_path)
    assert sent == received + under_way()
    assert case in ASYNC or under_way() == 0


@pytest.mark.parametrize("case", [*SYNC, *ASYNC])
def test_what_is_sent_before_and_after_a_stop_is_received(case, under_way, tmp_path):
    run = small(**{**SYNC, **ASYNC}[case], checkpoint={"every": 0})
    assert not play(run, tmp_path, stop=stop_after(30))
    assert play(run, tmp_path)
    sent, received = traffic(tmp_path)
    assert sent == received + under_way()
    assert case in ASYNC or under_way() == 0


@pytest.mark.parametrize("case", SYNC)
def test_a_checkpoint_puts_nothing_off_to_the_next_epoch(case, tmp_path):
    totals = {}
    for name in ("plain", "checkpoints", "stopped"):
        run = small(**SYNC[case], checkpoint={"every": int(name == "checkpoints")})
        folder = tmp_path / name / "runs/small"
        if name == "stopped":
            assert not play(run, folder, stop=stop_after(30))
        assert play(run, folder)
        table = collect(tmp_path / name).table
        totals[name] = table.loc[table["event"] == "evaluation", "bytes_sent_total"].to_numpy()
    shard = model(tmp_path / "plain/runs/small").nbytes / run.topology.servers
    for name in ("checkpoints", "stopped"):
        # What processes tell one another of checkpoints is small, even if they write one in every epoch.
        more = totals[name] - totals["plain"]
        assert np.all((more >= 0) & (more < shard))
