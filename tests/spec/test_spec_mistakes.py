"""What `load_experiment` says about files that are wrong: everything, once, with its place, in plain words."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpcps.cli.main import main
from hpcps.errors import SpecError
from hpcps.registry import active
from hpcps.spec.keys import dotted_keys, plain, root
from hpcps.spec.load import load_experiment
from hpcps.spec.validate import PLACEHOLDERS

FALSE_RESIDUAL = Path(__file__).parents[2] / "experiments/false_residual.py"
GOLDEN = Path(__file__).parent / "golden"
Write = Callable[..., Path]
RESNET = ["model.name=cifar_resnet20_v1", "data.name=synthetic"]
ALONE = ["topology={servers = 0, validators = 1, workers = 0}", "data.shards=5"]
ALIE = ["attack.kind=alie", "attack.z=auto", "attack.rate=0.25"]
SPARSE_LOCO = 'communication.compression={ kind = "sparse_loco", error_decay = 0.5'
AS_WORKERS = "data.validation_split=as_workers"


def mistakes(path: Path, *overrides: str) -> list[str]:
    """Return what is wrong with a file: `line: message` of each mistake, lines within one parted by a return."""
    with pytest.raises(SpecError) as caught:
        load_experiment(path, overrides)
    heading, *found = str(caught.value).replace("\n      ", "\r").split("\n  ")
    assert heading == f"{path}: {len(found)} mistake{'s' * (len(found) > 1)}"
    return [line.removeprefix(f"{path}:") for line in found]


def test_a_file_of_many_mistakes_reads_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    with pytest.raises(SpecError) as caught:
        load_experiment("mistakes.toml", ["train.lr=0.1", "train.epochs.x=1", "model={", "data.split=by_clas"])
    if "UPDATE_GOLDEN" in os.environ:
        Path("mistakes.txt").write_text(f"{caught.value}\n", encoding="utf-8")
    assert f"{caught.value}\n" == Path("mistakes.txt").read_text(encoding="utf-8")


ATTACKS = ", ".join(sorted(active().of("attacks")))
RULES = [f'"{name}"' for name in sorted(active().of("rules"))]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("[attack]\nkind = 3", f"12: attack.kind: unknown attack 3; choices: {ATTACKS}"),
        ("[attack]\nscale = 3", f"11: attack.kind: missing: which attack? choices: {ATTACKS}"),
        ("[attack]\nname = 'random'", '11: attack.kind: missing: the key is kind here, not name: kind = "random"'),
        (
            "[transport]\nkind = 'mpii'",
            '12: transport.kind: expects "inproc", "mpi" or "pslite" (default "mpi"), got "mpii": did you mean "mpi"?',
        ),
        (
            "[train.optimizer]\nbetas = [0.1]",
            "12: train.optimizer.betas[1]: expects a list of 2, each a number ≥ 0 and < 1, got [0.1]",
        ),
        ("[train.optimizer]\nbetas = [0.1, 1]", "12: train.optimizer.betas[1]: expects a number ≥ 0 and < 1, got 1"),
        (
            "[train.optimizer]\nlr = inf",
            "12: train.optimizer.lr: expects a number > 0 and ≤ 3.4e+38 (default 0.1), got inf",
        ),
        (
            "[train.optimizer]\nweight_decay = 1e100",
            "12: train.optimizer.weight_decay: expects a number from 0 to 3.4e+38 (default 0.0), got 1e+100",
        ),
        (
            "[train.optimizer]\nname = 'adam'\nlr = 1e38",
            "13: train.optimizer.lr: 1e+38 is too large for adam with its betas: a step has a factor of 1e+39, and "
            "float32 numbers end at 3.4e+38",
        ),
        (
            "[train.optimizer]\nname = 'adamw'\nlr = 1e30\nweight_decay = 1e9",
            "13: train.optimizer.lr: 1e+30 is too large for adamw with its weight_decay: a step has a factor of "
            "1e+39, and float32 numbers end at 3.4e+38",
        ),
        (
            "[server.optimizer]\nkind = 'adam'\nlr = 1e-50",
            "13: server.optimizer.lr: 1e-50 is too small for float32 numbers, which begin at 1.2e-38",
        ),
        (
            "[[sweep]]\n'train.optimizer.lr' = [0.1, 1e39]",
            "12: train.optimizer.lr: expects a number > 0 and ≤ 3.4e+38 (default 0.1), got 1e+39",
        ),
        (
            "[train.lr_decay]\nepochs = [\n1,\n-1]",
            "14: train.lr_decay.epochs[1]: expects a whole number from 0 to 1000000, got -1",
        ),
        ("[data.x]", "11: data.x: unknown key\r[data] takes name (required)"),
        (
            "[[sweep]]\nname = ['a', 'b']",
            "12: sweep[0].name: the name cannot be swept: all points of a file belong to one experiment",
        ),
        (
            "[communication]\ncompression = { kind = 'none', direction = 'both' }",
            '12: communication.compression.direction: unknown key\r[communication.compression] of kind "none" takes no '
            "keys but kind",
        ),
        (
            "[communication]\ncompression = { kind = 'topk', k = 1.5 }",
            "12: communication.compression.k: expects a share below 1 or a whole number, got 1.5",
        ),
        ("[[sweep]]", "11: sweep[0]: an empty [[sweep]]: give it keys, such as seed = [1, 2, 3], or remove it"),
        ("[[sweep]]\nseed = []", "12: sweep[0].seed: an empty list makes no points: add values or remove the key"),
        ("[[sweep]]\nseed = [1]\n[[sweep]]\nseed = [2]", "14: sweep[1].seed: seed is swept twice"),
        (
            "[[sweep]]\n'attack.rate' = [1]\nattack = [{kind='random'}]",
            "13: sweep[0].attack: attack follows a sweep of keys inside it and would replace them: put it first",
        ),
        ("[[sweep]]\nsede = [1, 2]", "12: sede: unknown key: did you mean seed?"),
        (
            "[[sweep]]\n'topology.validators' = [1, 5]",
            "12: topology.validators: 5 validators share 4 workers: some would have none; use at most 4",
        ),
        (
            "[topology.colocate_validators]",
            "11: topology.colocate_validators: expects true or false (default false), got {}",
        ),
        (
            "[validation]\nrule = 'zeno'",
            f"12: validation.rule: expects a table with kind = {', '.join(RULES[:-1])} or {RULES[-1]} "
            '(default { kind = "average" }), got "zeno": did you mean { kind = "zeno" }?',
        ),
    ],
)
def test_a_mistake_is_said_in_full_with_its_line(write: Write, more: str, expected: str) -> None:
    (only,) = mistakes(write(more))
    assert only.startswith(expected)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["train.local_steps={kind='esync'}", "topology={servers=0,validators=1,workers=0}", "data.shards=5"],
            "train.local_steps: the single-process baseline has nobody to wait for: use a number of steps",
        ),
        (
            ["train.local_steps.kind=dylu", "train.mode=async", "validation.rule={kind='naive_async'}"],
            'dylu fits local steps into a round, and only train.mode = "sync" has rounds: use a number',
        ),
        (["train.local_steps.kind=esync", "transport.kind=inproc"], "so esync knows no speeds: add a [simulation]"),
        (["train.local_steps.kind=esync", "fidelity=artifact"], 'ends with a round: set evaluate = "global_model"'),
        (["train.local_steps={kind='esync',epsilon=1,epsilon_share=0.1}"], "epsilon and epsilon_share set the same"),
        (["validation.batchnorm=average"], 'got "average": did you mean "averaged"?'),
        (["train.mode=esync"], 'got "esync": did you mean train.local_steps = { kind = "esync" }?'),
        (["train.local_steps={kind='esync',epsilonn=1}"], "unknown key: did you mean epsilon?"),
        (
            ["train.global_lr=0.5", "train.mode=async", "validation.rule={kind='naive_async'}"],
            "train.global_lr: only synchronous training uses it: use asynchronous.alpha = 0.5",
        ),
        (
            ["server.optimizer=nesterov", "train.global_lr=0.5"],
            "train.global_lr: the server optimizer nesterov has a learning rate of its own: leave it out",
        ),
        (
            ["server.optimizer={kind='delayed_nesterov',every=2}"],
            'server.optimizer: delayed_nesterov is not for train.mode = "sync": use one of adagrad, adam, momentum, n',
        ),
        (["server.optimizer=nesterof"], 'got "nesterof": did you mean { kind = "nesterov" }?'),
        (["server.optimizer={kind='yogi',momentum=0.5}"], "server.optimizer.momentum: unknown key"),
        (["communication.compression=fp16", *ALONE], "communication.compression: the single-process baseline sends no"),
        (
            ["communication.compression={kind='dithering',k=20,partition='natural'}"],
            'k = 20 is too large for partition = "natural": use 16 or less',
        ),
        (["communication.compression=fp61"], 'got "fp61": did you mean { kind = "fp16" }?'),
        (["communication.compression={kind='fp16',memory='ef'}"], 'got "ef": did you mean "ef21"?'),
        (
            ["communication.compression={kind='fp16',momentum=0.5}"],
            'momentum has an effect only with memory = "nesterov", not "residual": leave it out',
        ),
        (
            [
                "attack={kind='negative',acts_on='encoding'}",
                "communication.compression={kind='fp16',direction='model'}",
            ],
            'attack.acts_on: no update is encoded: set communication.compression, or acts_on = "update"',
        ),
        (
            ["attack={kind='negative',acts_on='encoding'}", "communication.compression={kind='fp16',memory='ef21'}"],
            "attack.acts_on: ef21 encodes differences: use another memory",
        ),
        (
            [
                f"plugins=['{FALSE_RESIDUAL}']",
                "attack={kind='false_residual',acts_on='encoding'}",
                "communication.compression={kind='topk'}",
            ],
            "attack.acts_on: false_residual is an attack by the residual",
        ),
        (
            ["communication.compression={kind='fp16',memory='ef21',direction='model'}"],
            'communication.compression.memory: ef21 is a memory of updates, and direction = "model" encodes none',
        ),
        (
            [
                *("train.mode=async", "validation.rule={kind='naive_async'}"),
                "communication.compression={kind='fp16',memory='none',direction='both'}",
            ],
            "communication.compression.memory: each worker has a model of its own version",
        ),
        (["server.optimizer=adam", *ALONE], "server.optimizer: the single-process baseline combines no updates"),
        (["train.lr_decay.final=0.1"], 'train.lr_decay.final: the schedule "steps" does not use it: leave it out'),
        (
            ["train.lr_decay={schedule='cosine',epochs=[1]}"],
            'train.lr_decay.epochs: the schedule "cosine" does not use it: leave it out',
        ),
        (["train.global_lr=0.5", *ALONE], "the single-process baseline combines no updates: leave it out"),
        (
            ["transport.kind=inproc", "simulation={kind='modelled',query=0.1}"],
            "simulation.query: without a policy of local steps there are no queries: leave it out",
        ),
        (["topology.validators=0", "validation.rule={kind='zeno'}"], "zeno compares updates with a validator's own"),
        (["topology.validators=2", "topology.colocate_validators=true"], "2 validators and only 1 server:"),
        (["data.shards=4"], "4 shards are too few for 4 workers and the validators: use 5 or more"),
        (["data.shards=3", "topology.validators=0"], "3 shards are too few for 4 workers: use 4 or more"),
        (["data.limit=99"], "99 training samples in 5 shards leave 19 in each, fewer than a batch of 32"),
        (
            ["model.name=cifar_resnet20_v1"],
            "(cifar10, cifar100, svhn, synthetic), but samples of digits have the shape [1, 8, 8]",
        ),
        (["data.augment=true"], "only for cifar10, cifar100, not digits"),
        (
            ["model.name=alexnet"],
            "alexnet is for images of at least 63 by 63, but samples of digits have the shape [1, 8, 8]: set "
            "data.resize = 63 or more, or use another model, such as mlp",
        ),
        (
            ["model.name=inception_v3", "data.resize=224"],
            "of at least 299 by 299, but resized samples have the shape [1, 224, 224]: set data.resize = 299 or more",
        ),
        (["data.resize=7"], "data.resize: the images of digits are 8 by 8, and can only be enlarged: use a larger"),
        (["data.resize=8"], "the images of digits are 8 by 8, and can only be enlarged: use a larger number, or leave"),
        (["data.normalise=false"], "has no effect: the samples of digits are not normalised anyway: leave it out"),
        (
            ["model.name=resnet18_v1", "train.batch_size=1"],
            "train.batch_size: the last feature maps of resnet18_v1 have one pixel for samples of the shape [1, 8, 8],",
        ),
        (
            ["model.name=mobilenet_v1", "heterogeneity.classes=[{name='a', workers=1, batch_size=1}]"],
            "the last feature maps of mobilenet_v1 have one pixel for samples of the shape [1, 8, 8], and BatchNorm",
        ),
        (["train.lr_decay.epochs=[5, 5]"], "[5, 5] must increase"),
        (
            ["attack={kind='silent', rate=0.5, scope='block'}"],
            'attack.scope: expects "worker" (default "worker"), got "bl',
        ),
        (["attack={kind='label_flip'}"], "0.2 of 4 workers is less than one attacker: use 0.25 or more, or"),
        (["attack={kind='zero', every=3, on=4}"], "attack.on: the attack acts in 4 rounds of each period of 3: use at"),
        (["attack={kind='zero', from_epoch=2}"], "attack.from_epoch: the run ends after 2 epochs, so the attack never"),
        (
            ["attack={kind='late', seconds=5, rate=0.5}", "transport.timeout=5.0"],
            "attack.seconds: 5.0 s is not below transport.timeout = 5.0 s, after which the others give up",
        ),
        (["attack={kind='random', scope='worker'}"], "0.2 of 4 workers is less than one attacker: use 0.25 or more"),
        (["attack={kind='ipm'}"], "0.2 of 4 workers is less than one attacker: use 0.25 or more"),
        (["attack={kind='ipm', rate=1.0}"], "all 4 workers are attackers, so ipm has no honest update that it could"),
    ],
)
def test_values_that_do_not_go_together_are_refused(write: Write, overrides: list[str], expected: str) -> None:
    (only,) = mistakes(write(), *overrides)
    assert expected in only


@pytest.mark.parametrize(
    "overrides",
    [
        ["topology.validators=0"],
        ["topology.validators=0", "data.shards=4"],
        ["topology.validators=2", "topology.servers=2", "topology.colocate_validators=true"],
        ["topology.validators=0", "fidelity=artifact"],
        ["data.name=cifar10", "data.augment=true", "model.name=cifar_resnet20_v1"],
        ["data.name=synthetic", "model.name=cifar_resnet20_v1"],
        ["model.name=resnet18_v1", "data.resize=33", "train.batch_size=1"],
        ["data.name=fashion_mnist", "model.name=alexnet", "data.resize=224", "data.normalise=false"],
        ["train.lr_decay.epochs=[100, 150]"],
        ["attack={kind='random', scope='worker', rate=0.25}"],
        ["attack={kind='random', scope='worker', rate=0}"],
        ["data.limit=160"],
    ],
)
def test_values_that_do_go_together_are_not(write: Write, overrides: list[str]) -> None:
    assert load_experiment(write(), overrides).points


def test_a_mistake_of_many_points_is_said_once(write: Write) -> None:
    path = write("seeds = 3\n[[sweep]]\nseed = [1, 2, 3, 4]\n[[sweep]]\n'data.limit' = [200, 0]")
    assert [line.split(":")[0] for line in mistakes(path)] == ["11", "15"]


def test_a_value_inside_a_swept_table_is_blamed_on_the_sweep_that_set_it(write: Write) -> None:
    path = write("[[sweep]]\nattack = [{ kind = 'random' }]\n[[sweep]]\n'attack.rate' = [0.5,\n2]")
    (only,) = mistakes(path)
    assert only.startswith("15: attack.rate: expects a number from 0 to 1")


def test_a_key_that_a_swept_table_left_out_says_so(write: Write) -> None:
    hint = "replaces the whole table of the file: repeat the key in it, or set single keys, such as "
    (only,) = mistakes(write("[[sweep]]\ntrain = [{ quorum = 3 }, { quorum = 4 }]"))
    assert only.startswith("12: train.epochs: ")
    assert only.endswith(f'; the new value of train {hint}"train.quorum"')
    (only,) = mistakes(write(), "train={batch_size=8}")
    assert only.endswith(f'; the new value of train {hint}"train.batch_size"')


def test_what_depends_on_the_sweep_says_which_value(write: Write) -> None:
    (only,) = mistakes(write("[[sweep]]\n'topology.workers' = [4, 8]"), "data.shards=6")
    assert only.endswith("(with topology.workers = 8 in line 12)")


def test_a_rule_must_fit_the_largest_combiner_too(write: Write) -> None:
    """A share of 9 updates tolerates 1 Byzantine update and one of 10 tolerates 2, which needs 11 updates."""
    (only,) = mistakes(
        write(), "validation.rule.kind=bulyan", "topology.workers=19", "topology.validators=2", "data.limit=1200"
    )
    assert (
        "validation.rule: bulyan needs at least 4 f + 3 updates, and f = 2 of 10, which are the updates of some of"
        in only
    )


def test_single_mistakes_do_not_hide_contradictions_nor_cause_them(write: Write) -> None:
    text = 'name = "x"\n[topology]\nworkers = 0\n[data]\nname = "digits"\naugment = true\n[train]\nepoch = 2\n'
    found = [line.split(": ")[1] for line in mistakes(write(text=text))]
    assert found == ["model.name", "topology.workers", "data.augment", "train.epoch"]
    exchange = mistakes(write(), "train.exchange=rings", "topology.servers=0", "topology.validators=0")
    assert [line.split(": ")[1] for line in exchange] == ["train.exchange"]


def test_values_that_are_replaced_everywhere_are_still_to_be_right(write: Write) -> None:
    path = write("[attack]\nkind = 'randon'\n[[sweep]]\nattack = [{ kind = 'none' }]")
    assert mistakes(path) == [f'12: attack.kind: unknown attack "randon": did you mean "random"? choices: {ATTACKS}']


@pytest.mark.parametrize(
    ("text", "place"),
    [("a = ", ":1:"), ("a = ]\n", ":1:5:"), ("a = 1\nb = 2\na = 3", ":3:"), ("[a", ":1"), ('a = """\n', ":")],
)
def test_invalid_toml_is_placed(write: Write, text: str, place: str) -> None:
    path = write(text=text)
    with pytest.raises(SpecError, match="not valid TOML") as caught:
        load_experiment(path)
    assert str(caught.value).startswith(f"{path}{place}")
    assert "at line" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nothing\.toml: there is no such file"):
        load_experiment(tmp_path / "nothing.toml")
    with pytest.raises(SpecError, match="cannot be read"):
        load_experiment(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"seed = 1\nname = '\xe9'")
    with pytest.raises(SpecError, match=r"latin\.toml:2: not UTF-8"):
        load_experiment(tmp_path / "latin.toml")


def test_every_required_key_has_a_stand_in() -> None:
    required = {name for name, key in dotted_keys(root()) if key.required and not key.tables}
    # A list with a mistake is left out as a whole.
    required -= {name for name in required if name.startswith("heterogeneity.classes.")}
    assert {".".join(path) for path in PLACEHOLDERS} == required


some_names = st.sampled_from(["kind", "rho", "name", "x"])
some_values = st.recursive(
    st.sampled_from([0, 1, -1, 2.5, True, "zeno", "cnn", "", "x"]) | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(some_names, inner, max_size=3),
    max_leaves=5,
)
some_keys = st.sampled_from(sorted({name for name, _ in dotted_keys()} | {"x", "train.x", "attack.kind", "seed.x"}))
some_sweeps = st.lists(
    st.dictionaries(some_keys, some_values | st.lists(some_values, max_size=3), max_size=2), max_size=2
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(some_keys, some_values, max_size=4), some_sweeps)
@example({"train": 0, "train.abandon": []}, [])
def test_whatever_a_file_says_the_answer_is_points_or_plain_words(
    write: Write, sets: dict[str, object], sweeps: list[dict[str, object]]
) -> None:
    tables = "".join(
        "[[sweep]]\n" + "".join(f"{plain(key)} = {plain(value)}\n" for key, value in table.items()) for table in sweeps
    )
    said = ""
    try:
        assert load_experiment(write(tables), [f"{key}={plain(value)}" for key, value in sets.items()]).points
    except SpecError as error:
        said = str(error)
    foreign = ("pydantic", "http", "Input should", "input_value", "Field required", "None", "dict", "Traceback")
    assert not [word for word in foreign if word in said]


DC_ASGD = """mode = 'async'
local_steps = 1
optimizer = { name = 'sgd', momentum = 0.0 }
[validation]
rule = { kind = 'dc_asgd' }
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("mode = 'async'", "validation.rule: average is for train.mode = \"sync\", but the mode is \"async\": "
         "use one of dc_asgd, fed_async, naive_async, zeno++"),
        (f"{DC_ASGD}[asynchronous]\nproximal = {{ worker = 0.2 }}", "asynchronous.proximal.worker: dc_asgd needs"),
        (f"{DC_ASGD}[communication]\nparticipation = 0.5", 'asynchronous.absent: dc_asgd needs'),
        (DC_ASGD.replace("local_steps = 1", "local_steps = 2"), "train.local_steps: dc_asgd needs updates"),
        (DC_ASGD.replace("local_steps = 1", "local_steps = { kind = 'dylu' }"), "train.local_steps: dylu fits"),
        (DC_ASGD.replace("momentum = 0.0", "momentum = 0.9"), "train.optimizer.momentum: dc_asgd needs"),
        (DC_ASGD.replace("name = 'sgd', momentum = 0.0", "name = 'adam'"), "train.optimizer.name: dc_asgd needs"),
        ("[validation.rule]\nkind = 'zeno++'", "validation.rule: zeno++ is for train.mode = \"async\""),
        ("[asynchronous]\nalpha = 0.4", "asynchronous: has an effect only with train.mode"),
        ("mode = 'async'\n[transport]\npartition = 4096\n[validation]\nrule = { kind = 'zeno++' }",
         "transport.partition: only synchronous training uses partitions"),
        ("mode = 'async'\n[validation]\nbatchnorm = 'averaged'\nrule = { kind = 'zeno++' }",
         "validation.batchnorm: asynchronous workers have no common round"),
        ("[heterogeneity.slow]\nworkers = [4]\nfactor = 2", "heterogeneity.slow.workers: [4] are not among the 4"),
        ("[heterogeneity.slow]\nworkers = [1]", "heterogeneity.slow.workers: has an effect only with both"),
        ("[heterogeneity.slow]\nfactor = 3", "heterogeneity.slow.factor: has an effect only with both"),
        ("[transport]\ninterface = 'ib0'", "transport.interface: has an effect only with transport.kind = \"pslite\""),
        ("[transport]\nkind = 'pslite'\nshared_memory = 'off'", "transport.shared_memory: has an effect only with"),
        (
            "[transport]\nkind = 'inproc'\ndevice_buffers = 'direct'",
            'transport.device_buffers: has an effect only with transport.kind = "mpi": set that, or leave it out',
        ),
        (
            "[transport]\ndevice_buffers = 'in_place'",
            'transport.device_buffers: "in_place" does not exist any more, because MPI maps device memory itself: use',
        ),
        ("mps = 'off'\ndevice = 'cpu'", "train.mps: has no effect without a GPU"),
        ("mps = 'off'\n[transport]\nkind = 'inproc'", "train.mps: has no effect in one process"),
        ("[transport]\nkind = 'inproc'\nresend = true", "transport.resend: has an effect only with"),
        ("[transport]\nkind = 'inproc'\n[heterogeneity.slow]\nworkers = [1]\nfactor = 2", "heterogeneity.slow: in one"),
        ("[heterogeneity]\ndelay = { kind = 'uniform', low = 2.0, high = 1.0 }", "heterogeneity.delay.high: 1.0 s is"),
        ("lr_decay = { validator_epochs = [2, 1] }", "train.lr_decay.validator_epochs: [2, 1] must increase"),
        ("mode = 'async'\n[validation]\nrule = { kind = 'fed_async', staleness = { kind = 'hinge', c = 1 } }",
         "validation.rule.staleness.c: unknown key"),
    ],
)  # fmt: skip
def test_mistakes_of_asynchronous_and_heterogeneous_training(write: Write, more: str, expected: str) -> None:
    found = [line.partition(": ")[2] for line in mistakes(write(more))]
    assert len(found) == 1 or "batchnorm" in expected
    assert any(line.startswith(expected) for line in found)


RING, ALLREDUCE = (
    ["topology={servers=0, validators=0, workers=4}", f"train.exchange={kind}"] for kind in ("ring", "allreduce")
)


@pytest.mark.parametrize(
    ("exchange", "overrides", "expected"),
    [
        (RING, ["topology.servers=1"], 'topology.servers: with train.exchange = "ring" the workers average their'),
        (RING, ["topology.validators=1"], 'topology.validators: with train.exchange = "ring" the workers average'),
        (RING, ["topology.colocate_validators=true"], "topology.colocate_validators: with train.exchange"),
        (RING, ["topology.workers=0", "data.shards=5"], 'topology.workers: train.exchange = "ring" averages the updat'),
        (RING, ["validation.rule.kind=median"], 'validation.rule: train.exchange = "ring" computes a mean, not median'),
        (RING, ["validation.rule={kind='mean', before=[{kind='arc', f=1}]}"], "validation.rule.before: train.exchange"),
        (RING, ["validation.rule={kind='average', skipped='left_out'}"], "validation.rule.skipped: train.exchange = "),
        (
            ALLREDUCE,
            ["train.mode=async", "validation.rule.kind=naive_async"],
            'train.exchange: "allreduce" is for train.mode = "sync"',
        ),
        (RING, ["attack={kind='ipm', rate=0.5}"], 'attack.kind: with train.exchange = "ring" no process sees the upda'),
        (RING, ["attack={kind='nan', rate=0.5}"], 'attack.kind: with train.exchange = "ring" each worker screens its'),
        (RING, ["transport.device_buffers=direct"], "transport.device_buffers: has an effect only on"),
        (RING, ["communication.compression=int8"], 'communication.compression: with train.exchange = "ring" sums of'),
        (RING, ["server.optimizer=adam"], 'server.optimizer: with train.exchange = "ring" no server keeps its state'),
        (RING, ["train.global_lr=0.5"], 'train.global_lr: with train.exchange = "ring" the mean is added as it is'),
        (RING, ["train.local_steps={kind='esync'}"], 'train.local_steps: with train.exchange = "ring" no server'),
        (ALLREDUCE, ["transport.kind=pslite"], 'transport.kind: has no Allreduce: use kind = "inproc" or "mpi"'),
        (ALLREDUCE, ["transport.partition=4096"], "transport.partition: Allreduce divides the vector itself"),
        (ALLREDUCE, ["transport.shared_memory=off"], "transport.shared_memory: MPI decides how Allreduce sends"),
        (ALLREDUCE, ["transport.kind=inproc", "simulation.kind=modelled"], "simulation: has no model of the time of"),
        (
            ALLREDUCE,
            ["transport.kind=inproc", "simulation={kind='measured', records='x'}"],
            "simulation: has no model of the time of Allreduce: leave it out",
        ),
        (
            RING,
            ["transport.kind=inproc", "simulation={kind='measured', records='x'}"],
            "simulation.kind: fits the costs of servers",
        ),
    ],
)
def test_mistakes_of_exchanges_without_servers(
    write: Write, exchange: list[str], overrides: list[str], expected: str
) -> None:
    (only,) = [line.partition(": ")[2] for line in mistakes(write(), *exchange, *overrides)]
    assert only.startswith(expected)


@pytest.mark.parametrize(
    "overrides",
    [
        [*RING, "transport.kind=pslite", "transport.partition=4096"],
        [*RING, "transport.kind=inproc", "simulation.kind=modelled"],
        [*RING, "topology.workers=1", "validation.rule.kind=mean"],
        [*ALLREDUCE, "communication={participation=0.5, skip_rate=0.2}", "attack={kind='sign_flip'}"],
        [
            *ALLREDUCE,
            "validation.batchnorm=reestimated",
            "train.first_step=overwritten",
            "heterogeneity.slow={workers=[1], factor=2.0}",
        ],
    ],
)
def test_what_exchanges_without_servers_can_do(write: Write, overrides: list[str]) -> None:
    assert load_experiment(write(), overrides).points


BEFORE = "[validation.rule]\nkind = 'median'\nbefore = "


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (f"{BEFORE}[{{kind='arc'}},\n{{kind='nmm'}}]", '14: validation.rule.before[1].kind: unknown pre-aggregator '
         '"nmm": did you mean "nnm"? choices: arc, bucketing, clipping, foundation, nnm'),
        (f"{BEFORE}[{{kind='nnm', size=2}}]", "13: validation.rule.before[0].size: unknown key"),
        (f"{BEFORE}['arc', 'nmn']", '13: validation.rule.before[1]: expects "arc", "bucketing", "clipping", '
         '"foundation" or "nnm", or a table of this kind, got "nmn": did you mean "nnm"?'),
        (f"{BEFORE}'nnm'", '13: validation.rule.before: expects a list, each "arc", "bucketing", "clipping", '
         '"foundation" or "nnm", or a table of this kind (default []), got "nnm": did you mean ["nnm"]?'),
        (f"{BEFORE}{{kind='nnm'}}", '13: validation.rule.before: expects a list, each "arc", '),
        (f"{BEFORE}[{{kind='bucketing', size=0}}]", "13: validation.rule.before[0].size: expects a whole number"),
        (f"{BEFORE}[{{kind='bucketing', f=1}}]", "11: validation.rule: bucketing needs more than 2 f buckets, and f = "
         "1 with 2 buckets of 4, which are the updates of the combiner in a round"),
        (f"{BEFORE}[{{kind='nnm', f=2}}]", "11: validation.rule: nnm needs at least 2 f + 1 updates, and f = 2 of 4"),
        ("[validation.rule]\nkind = 'median'\nskipped = 'left_out'\n[attack]\nkind = 'searched_alie'\nrate = 0.25",
         "15: attack.kind: searched_alie tries the rule on whole updates, so blocks cannot be left out: use skipped"),
        (f"{BEFORE}[{{kind='nnm'}}]\nskipped = 'left_out'",
         "14: validation.rule.skipped: median after nnm sees whole updates, so blocks cannot be left out"),
        ("[validation.rule]\nkind = 'krum'\nskipped = 'left_out'", "13: validation.rule.skipped: krum sees whole"),
        ("[validation.rule]\nkind = 'trimmed_mean'\nf = 2", "11: validation.rule: trimmed_mean needs at least 2 f + 1"),
        *((f"[validation.rule]\nkind = '{kind}'\nf = {f}", f"11: validation.rule: {kind} needs at least {bound} "
           f"updates, and f = {f} of 4, which are the updates of the combiner in a round: use more workers, or another "
           "rule or f") for kind, f, bound in (("krum", 1, "2 f + 3"), ("multi_krum", 1, "2 f + 3"),
                                               ("cge", 2, "2 f + 1"), ("monna", 3, "2 f + 1"))),
        ("[validation.rule]\nkind = 'krum'\nf = 1\nbefore = [{kind='bucketing', size=1}, {kind='nnm'}]",
         "11: validation.rule: krum needs at least 2 f + 3 updates, and f = 1 of 4, which are the updates"),
        ("[validation.rule]\nkind = 'phocas'\nf = 1\ntrim = 0.1", "11: validation.rule: f and trim exclude each other"),
        ("[validation.rule]\nkind = 'phocas'\nf = 1\ntrim = 0.2", "13: validation.rule.f: f and trim exclude each"),
    ],
)  # fmt: skip
def test_mistakes_of_what_is_before_a_rule(write: Write, more: str, expected: str) -> None:
    (only,) = mistakes(write(more))
    assert only.startswith(expected)


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("train.optimizer.momentum", 'train.optimizer={ name = "adam", momentum = 0.5 }'),
        ("train.optimizer.betas", 'train.optimizer={ name = "sgd", betas = [0.9, 0.99] }'),
        ("data.alpha", "data.alpha=0.3"),
        ("data.validation_split", AS_WORKERS),
        ("train.lr_decay.factor", "train.lr_decay.factor=0.5"),
        ("train.warmup.start", "train.warmup.start=0.5"),
        ("data.limit", "data.limit=1438"),
        ("data.test_limit", "data.test_limit=361"),
        ("validation.batchnorm", "validation.batchnorm=validator"),
        ("communication.compression", f'{SPARSE_LOCO}, memory = "none" }}'),
        ("communication.compression", f'{SPARSE_LOCO}, memory = "ef21" }}'),
        ("communication.compression", f'{SPARSE_LOCO}, direction = "model" }}'),
        ("communication.compression", f'{SPARSE_LOCO.replace("sparse_loco", "demo")}, memory = "none" }}'),
    ],
)
def test_a_key_without_an_effect_is_a_mistake(write: Write, key: str, setting: str) -> None:
    (only,) = mistakes(write(), setting)
    assert f"--set {setting}: {key}: " in only
    assert "leave it out" in only


@pytest.mark.parametrize(
    "settings",
    [
        ["train.lr_decay.factor=0.5", "train.lr_decay.epochs=[]"],  # an answer, such as the first value of a sweep
        ["train.lr_decay.factor=0.5", "train.lr_decay.validator_epochs=[1]"],
        ["train.warmup.start=0.5", "train.warmup.epochs=0"],
        ["data.limit=1437", "data.test_limit=360"],
        ["validation.batchnorm=reestimated"],  # what the preset sets anyway makes no other run
        ["fidelity=artifact", "validation.batchnorm=validator"],
        [*RESNET, "validation.batchnorm=validator"],
        [f'{SPARSE_LOCO}, direction = "both" }}'],
    ],
)
def test_a_key_that_may_have_an_effect_is_none(write: Write, settings: list[str]) -> None:
    assert load_experiment(write(), settings).points


def test_the_factor_of_alpha_needs_epochs_too(write: Write) -> None:
    over = ["train.mode=async", "validation.rule.kind=zeno++", "asynchronous.alpha_decay.factor=0.1"]
    (only,) = mistakes(write(), *over)
    assert "asynchronous.alpha_decay.factor: has an effect only with epochs" in only
    # The preset's are those of the learning rate.
    assert load_experiment(write(), [*over, "train.lr_decay.epochs=[1]"]).points


def test_a_kind_that_is_set_replaces_the_table_and_its_sweep(write: Write) -> None:
    path = write("[[sweep]]\nattack = [{ kind = 'none' }, { kind = 'negative', scale = 6 }, { kind = 'random' }]")
    (only,) = load_experiment(path, ["attack.kind=randomscale"]).points
    values = {"kind": "randomscale", "scale": 8.0, "rate": 0.2, "scope": "block", "from_epoch": 0, "every": 1, "on": 1}
    values["acts_on"] = "update"
    assert only.run.attack.model_dump() == values
    for texts in (["attack.kind=negative", "attack.scale=3"], ["attack.scale=3", "attack.kind=negative"]):
        (only,) = load_experiment(path, texts).points
        assert only.run.attack.model_dump()["scale"] == 3
    (only,) = load_experiment(path, ["attack.kind=none", "attack={kind = 'negative', scale = 2}"]).points
    assert only.run.attack.kind == "negative"
    based = write("[attack]\nkind = 'negative'\nscale = 9\n")
    (only,) = load_experiment(based, ["attack.kind=random"]).points
    assert only.run.attack.model_dump()["scale"] == 1
    (wrong,) = mistakes(based, "attack.kind=randon")
    assert 'attack.kind: unknown attack "randon": did you mean "random"?' in wrong
    assert "--set attack.kind=randon" in wrong


def test_points_that_a_setting_makes_the_same_are_told_once(write: Write) -> None:
    path = write("[[sweep]]\n'attack.kind' = ['negative', 'random']\n[[sweep]]\n'attack.scale' = [1, 2, 3]")
    assert len(load_experiment(path).points) == 6
    (only,) = mistakes(write("[[sweep]]\nattack = [{ kind = 'negative', scale = 1 }, { kind = 'negative', scale = 2 }, "
        "{ kind = 'random', scale = 1}, { kind = 'random', scale = 2}]"), "attack.scale=3")  # fmt: skip
    assert "--set attack.scale=3: points 0 (" in only
    assert "are the same run: their differences do not affect the results; 1 more of these" in only


@pytest.mark.parametrize(
    ("more", "overrides", "expected"),
    [
        (
            "[validation]\nrule = { kind = 'phocas' }\n",
            ["topology.validators=2"],
            "12: validation.rule: phocas returns",
        ),
        ("", ["topology.validators=2", "validation.rule.kind=trimmed_mean"], "4 workers is 2: the model never changes"),
        (
            "",
            ["topology.workers=5", "topology.validators=2", "validation.rule.kind=phocas"],
            "such a validator changes",
        ),
        (
            "",
            ["topology.validators=0", "topology.workers=2", "validation.rule.kind=phocas"],
            "there are 2 workers: the",
        ),
        ("[[sweep]]\n'data.split' = ['iid', 'by_class']", [], "12: data.split: 4 of 4 workers lack classes; worker 0"),
        ("", ["data.split=dirichlet", "data.alpha=1000"], ""),
        ("", ["data.split=dirichlet", "data.alpha=0.01"], "workers lack classes; worker"),
        ("", ["data.split=by_class", "data.name=mnist", "data.dir=/nowhere"], "the files of mnist are missing"),
        ("", ["data.name=mnist", "data.dir=/nowhere"], ""),
        ("", ["data.limit=160"], ""),
        ("", ["data.limit=60", "train.batch_size=4", "topology.validators=0"], "4 of 4 workers lack classes"),
        ("", [*ALONE, "data.shards=90", "train.batch_size=4"], "shard of 15 samples has 9 of 10 classes: use fewer"),
        ("", [*ALONE, "data.split=by_class", AS_WORKERS], "split like the workers' shards, with 3 of 10 classes"),
        ("", ["validation.rule.kind=phocas"], ""),
        ("", ["validation.rule.kind=trimmed_mean"], "4 workers is 4: with trim = 0.2 it is the mean; use more"),
        ("", ["validation.rule.kind=trimmed_mean", "validation.rule.trim=0.25"], ""),
        ("", ["validation.rule.kind=trimmed_mean", "validation.rule.trim=0"], ""),
        ("", ["topology.validators=2"], ""),
        ("", [*ALIE, "topology.workers=8"], "z = 0 for f = 2 of 8 updates, so it sends the mean: use more"),
        ("", ["attack.kind=sparse", *ALIE[1:], "topology.workers=8"], "so most of what it sends is the mean: use"),
        ("", [*ALIE, "attack.rate=0.13", "topology.workers=8"], "z = -0.18 for f = 1 of 8 updates, so its"),
        ("", [*ALIE, "attack.rate=0.49", "topology.workers=7"], ""),
        ("", [*ALIE[:1], "topology.workers=8"], ""),
        ("", [*ALIE[:1], "attack.rate=0.75", "topology.validators=2"], " workers of validator "),
        (
            "",
            ["validation.rule.kind=rlr", "topology.workers=3", "validation.rule.threshold=4"],
            "flips the sign of every",
        ),
        ("", ["train.epochs=3", "train.warmup.epochs=4"], "the rate rises over 4 epochs, but the run has 3: use fewer"),
        ("", ["train.epochs=3", "train.warmup.epochs=3"], ""),
        ("", ["topology.validators=0", "data.split=by_class"], "4 of 4 workers lack classes; worker 0 has 3 of 10"),
        ("", [*ALONE, "validation.rule.kind=phocas", "data.split=by_class"], ""),
    ],
)
def test_what_is_odd_is_told_and_runs(write: Write, more: str, overrides: list[str], expected: str) -> None:
    told = [each for each in load_experiment(write(more), overrides).warnings if "compares updates" not in each]
    assert len(told) == bool(expected)
    assert expected in "".join(told)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["data.split=by_class", "validation.rule.kind=zeno"], True),
        (["data.split=by_class", "validation.rule.kind=fltrust"], True),
        (["data.split=by_class", "validation.rule.kind=median"], False),
        (["data.split=by_class", "validation.rule.kind=zeno", AS_WORKERS], False),
        (["data.split=dirichlet", "data.alpha=1000", "validation.rule.kind=zeno"], False),
    ],
)
def test_a_reference_of_all_classes_and_workers_of_few_may_not_agree(
    write: Write, overrides: list[str], told: bool
) -> None:
    found = [each for each in load_experiment(write(""), overrides).warnings if "compares updates with the" in each]
    assert len(found) == told
    assert all(
        "of all classes, and 4 of 4 workers lack classes: it may accept no update in most" in each for each in found
    )


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["topology.servers=0"], "topology.servers: the workers need a server that keeps the model: use 1 or more"),
        (["topology.workers=0"], "topology.workers: without workers there is no update to combine: use 1 or more"),
        ([*ALONE, "topology.validators=0"], "topology.validators: for the single-process baseline set servers = 0"),
        ([*ALONE, "topology.validators=2"], "topology.validators: for the single-process baseline set servers = 0"),
        (ALONE[:1], "data.shards: required, because it has no default without workers"),
        ([*ALONE, "data.shards=50"], "train.batch_size: 1437 training samples in 50 shards"),
        (
            [*ALONE, *RESNET, "validation.batchnorm=averaged"],
            "validation.batchnorm: there are no workers whose statistics",
        ),
    ],
)
def test_mistakes_of_topologies_without_servers_or_workers(write: Write, overrides: list[str], expected: str) -> None:
    (only,) = mistakes(write(), *overrides)
    assert expected in only


def test_one_process_alone_inherits_what_does_not_act(write: Write) -> None:
    inherited = """
    [topology]
    workers = 4
    colocate_validators = true
    [validation]
    rule = { kind = "zeno" }
    [attack]
    kind = "random"
    scope = "worker"
    rate = 0.3
    [heterogeneity.slow]
    workers = [3]
    factor = 2
    [[include]]
    label = "alone"
    topology = { servers = 0, validators = 1, workers = 0 }
    data.shards = 5
    """
    text = 'name = "x"\nmodel.name = "cnn"\ndata.name = "digits"\ntrain.epochs = 2\n' + inherited
    together, alone = load_experiment(write(text=text)).points
    assert (together.run.topology.alone, alone.run.topology.alone) == (False, True)
    # A key that a later version adds must not change the ids that results have.
    assert load_experiment(write(text=text), ["train.passes_per_epoch=1"]).points[1].run_id == alone.run_id
    assert load_experiment(write(text=text), ["train.passes_per_epoch=2"]).points[1].run_id != alone.run_id


SMALL_IMAGES = '''
from typing import Literal

from hpcps.data import Data, Facts

class Tiny(Data):
    """Images that are too small for the convolutional network."""
    facts = Facts(shape={shape}, classes=2, train=1000, test=20)
    name: Literal["tiny"] = "tiny"

    def open(self):
        raise NotImplementedError
'''


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("kind = 'digits'", 'required: the key is name here, not kind: name = "digits"'),
        (
            "kind = ['digits']",
            'required: choose "cifar10", "cifar100", "digits", "fashion_mnist", "mnist", "svhn", "synthetic" or "text"',
        ),
        (
            "limit = 9",
            'required: choose "cifar10", "cifar100", "digits", "fashion_mnist", "mnist", "svhn", "synthetic" or "text"',
        ),
    ],
)
def test_a_table_without_the_name_of_its_component_tells_the_choices(tmp_path: Path, table: str, expected: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(f"name = 'x'\ntopology.workers = 2\nmodel.name = 'mlp'\ntrain.epochs = 1\n[data]\n{table}\n")
    assert mistakes(file) == [f"5: data.name: {expected}"]


@pytest.mark.parametrize("shape", [(1, 3, 8), (1, 8, 3), (64,)])
def test_a_model_on_images_too_small_for_it_is_a_mistake_with_its_line(
    write: Write, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    (tmp_path / "tiny.py").write_text(SMALL_IMAGES.format(shape=shape), encoding="utf-8")
    (message,) = mistakes(write(), "plugins=['tiny.py']", "data={name='tiny'}")
    assert message == (
        "6: model.name: cnn is for images of at least 4 by 4, but samples of tiny have the shape "
        f"{list(shape)}: {'set data.resize = 8 or more, or ' if len(shape) == 3 else ''}use another model, such as mlp "
        "(with --set data={name='tiny'})"
    )


def test_a_name_is_short_enough_for_a_folder(write: Write) -> None:
    assert load_experiment(write(), ["name=" + "a" * 100]).name == "a" * 100
    (message,) = mistakes(write(), "name=" + "a" * 101)
    assert "name: expects a text that matches ^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$" in message


@pytest.mark.thorough
def test_very_many_unknown_keys_are_counted_and_the_first_are_explained(write: Write) -> None:
    """To compare each of them with all keys that exist would take minutes."""
    keys = "".join(f"k{number} = 1\n" for number in range(2_000))
    for table, name in (("", ""), ("[transport]\n", "transport.")):
        with pytest.raises(SpecError) as caught:
            load_experiment(write(table + keys))
        text = str(caught.value)
        assert f"{name}k99: unknown key" in text
        assert f"{name}k100: and up to 1,900 more mistakes, which are not explained: correct the others first" in text
        assert "k101" not in text


@pytest.mark.thorough
def test_very_many_wrong_points_are_counted_and_the_first_are_listed(write: Write) -> None:
    names = ", ".join(f"'m{number}'" for number in range(1_500))
    with pytest.raises(SpecError) as caught:
        load_experiment(write(f"[[sweep]]\n'model.name' = [{names}]\n"))
    assert str(caught.value).endswith("\n  ... and 800 more: correct these first")


def test_a_check_of_very_many_points_says_what_it_does(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hpcps.spec.load.MANY", 3)
    load_experiment(write("[[sweep]]\nseed = [1, 2, 3]\n"))
    assert capsys.readouterr().err == ""
    path = write("[[sweep]]\nseed = [1, 2, 3, 4]\n")
    load_experiment(path)
    assert capsys.readouterr().err == f"hpcps: {path}: checking 4 points ...\n"


def test_a_number_of_thousands_of_digits_is_named_with_its_line(write: Write) -> None:
    with pytest.raises(SpecError) as caught:
        load_experiment(write("seed = " + "9" * 5000))
    assert str(caught.value).endswith(": a number in it is too long: it has 5,000 digits")


def test_labels_and_messages_do_not_control_the_terminal(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    evil = r"a\nb\u001b[31mc\u202Ed"
    shown = r"a b\x1b[31mc\u202ed"
    path = write(f'[[include]]\nseed = 7\nlabel = "{evil}"\n')
    path.write_text(f'description = "{evil}"\n{path.read_text()}')
    assert main(["check", str(path)]) == 0
    out = capsys.readouterr().out
    assert shown in out
    assert r"b\x1b[31mc\u202ed" in out  # the second line of the description
    path = write(f'[server]\n"{evil}" = "{evil}"\n')
    assert main(["check", str(path)]) == 2
    said = out + capsys.readouterr().err
    assert f"{shown}: unknown key" in said
    assert all(line.isprintable() for line in said.splitlines())
