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
    "model": {"name": "cifar_resnet8_v1"},
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


@pytest.fixture(scope="module")
def play_case(tmp_path_factory):
    """Return what plays a case once: whole, with a checkpoint in every epoch, or stopped and continued.

    It returns the folder of the results, and how many bytes were sent that nobody took before the end.
    """
    played = {}

    def play_case(case, kind):
        if (case, kind) not in played:
            results = tmp_path_factory.mktemp("results")
            run = small(**{**SYNC, **ASYNC}[case], checkpoint={"every": int(kind == "checkpoints")})
            exchanges = []

            class Watched(Exchange):
                def __init__(self):
                    super().__init__()
                    exchanges.append(self)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(inprocess, "Exchange", Watched)
                if kind == "stopped":
                    assert not play(run, results / "runs/small", stop=stop_after(30))
                assert play(run, results / "runs/small")
            letters = [letter for exchange in exchanges for box in exchange._boxes.values() for letter in box]
            under_way = sum(len(header) + len(payload or b"") for *_, header, payload in letters)
            played[case, kind] = results, under_way
        return played[case, kind]

    return play_case


@pytest.mark.sample(2, 8)
@pytest.mark.parametrize("kind", ["whole", "checkpoints", "stopped"])
@pytest.mark.parametrize("case", [*SYNC, *ASYNC])
def test_what_is_sent_is_received(case, kind, play_case):
    results, under_way = play_case(case, kind)
    sent, received = traffic(results / "runs/small")
    assert sent == received + under_way
    assert case in ASYNC or under_way == 0


@pytest.mark.thorough
@pytest.mark.parametrize("case", SYNC)
def test_a_checkpoint_puts_nothing_off_to_the_next_epoch(case, play_case):
    totals = {}
    for kind in ("whole", "checkpoints", "stopped"):
        results, _ = play_case(case, kind)
        table = collect(results).table
        totals[kind] = table.loc[table["event"] == "evaluation", "bytes_sent_total"].to_numpy()
    shard = model(play_case(case, "whole")[0] / "runs/small").nbytes / small(**SYNC[case]).topology.servers
    for kind in ("checkpoints", "stopped"):
        # What processes tell one another of checkpoints is small, even if they write one in every epoch.
        more = totals[kind] - totals["whole"]
        assert np.all((more >= 0) & (more < shard))
