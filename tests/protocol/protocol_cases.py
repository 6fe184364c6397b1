"""The runs on which system and transcription are compared: a name, and what differs from `BASE`."""

import copy
from typing import Any

from hpcps.spec.schema import Run

Tree = dict[str, Any]

BASE: Tree = {
    "name": "protocol",
    "seed": 5,
    "transport": {"kind": "inproc"},
    "topology": {"workers": 6},
    "model": {"name": "mlp"},
    # 40 samples for everyone: an epoch is 5 steps, so with H = 3 epochs end inside rounds 1 and 3, and with round 4.
    "data": {"name": "digits", "limit": 280, "test_limit": 200},
    "train": {
        "epochs": 3,
        "batch_size": 8,
        "local_steps": 3,
        "device": "cpu",
        "optimizer": {"name": "nag", "lr": 0.1, "weight_decay": 1e-3},
    },
    "communication": {"participation": 0.7, "skip_rate": 0.3},
}

ZENO: Tree = {"kind": "zeno", "rho": -0.001, "epsilon": 3.0}
RULES: dict[str, Tree] = {kind: {"kind": kind} for kind in ("average", "trimmed_mean", "median", "phocas")} | {
    "zeno": ZENO
}
ARTIFACT = {
    "train.first_step": "overwritten",
    "validation.evaluate": "validator_model",
    "validation.batchnorm": "validator",
}
RESNET = {
    "model.name": "cifar_resnet8_v1",
    "data": {"name": "synthetic", "limit": 48, "test_limit": 30},
    "topology.workers": 2,
    "train.batch_size": 4,
    "train.epochs": 1,
    "communication.participation": 1.0,
    "validation.rule": ZENO,
}


def resolve(changes: Tree) -> Run:
    """Return the run of `BASE` with other values under the dotted keys of `changes`."""
    tree = copy.deepcopy(BASE)
    for path, value in changes.items():
        table = tree
        *parents, key = path.split(".")
        for parent in parents:
            table = table.setdefault(parent, {})
        table[key] = copy.deepcopy(value)
    return Run.model_validate(tree)


def topologies() -> dict[str, Tree]:
    """Every rule with 0, 1 and 2 validators and 1, 2 and 3 servers, and updates enough for something to be trimmed."""
    cases = {}
    for kind, rule in RULES.items():
        for validators, servers in ((0, 1), (0, 3), (1, 2), (2, 3)):
            workers = 11 if validators == 2 else 6
            if kind != "zeno" or validators:  # zeno needs a validator's own update
                cases[f"{kind}-validators-{validators}-servers-{servers}"] = {
                    "validation.rule": rule,
                    "topology": {"workers": workers, "validators": validators, "servers": servers},
                    "data.limit": 40 * (workers + 1),
                    "seed": validators + servers,
                }
    return cases


def attacks() -> dict[str, Tree]:
    """Every attack, mild enough not to hide the rest, with both scopes, where it gets through and where it need not."""
    return {
        f"{kind}-{scope}-{rule}": {
            "validation.rule": RULES[rule],
            "attack": {"kind": kind, "scale": scale, "rate": 0.4, "scope": scope},
            "topology.servers": 2,
        }
        for kind, scale in (("negative", 6.0), ("random", 0.05), ("randomscale", 2.0))
        for scope in ("block", "worker")
        for rule in ("average", "zeno")
    }


def own_attacks() -> dict[str, Tree]:
    """Every attack that needs to know nothing of others, and schedules; an epoch is five thirds of a round."""
    changes: dict[str, Tree] = {
        "sign_flip": {"scope": "worker", "every": 2},
        "gaussian-zero": {"scale": 0.05, "from_epoch": 2},
        "gaussian-own": {"around": "own", "scale": 3.0, "every": 3, "on": 2},
        "zero": {},
        "nan": {},
        "infinite": {"scope": "worker", "from_epoch": 1},
        "drop": {"share": 0.5, "every": 2},
        "label_flip": {},
        "label_flip-later": {"from_epoch": 1, "every": 3, "on": 2},
        "free_rider-change": {"every": 3, "on": 2},
        "free_rider-noise": {"sends": "noise", "every": 2},
        "silent": {"every": 3, "on": 2},
        "late": {"seconds": 2.5},
    }
    return {
        f"{name}-{rule}": {
            "validation.rule": RULES[rule],
            "attack": {"kind": name.partition("-")[0], "rate": 0.4, **more},
            "topology.servers": 2,
            "topology.validators": validators,
        }
        for name, more in changes.items()
        for rule, validators in ((("zeno", 2),) if name in ("nan", "free_rider-noise") else (("average", 1),))
    }


def presets() -> dict[str, Tree]:
    """Both first steps and both ways to evaluate, with validators that train, that do not, and without any."""
    return {
        f"{first_step}-{evaluate}-{rule}-validators-{validators}": {
            "train.first_step": first_step,
            "validation": {"evaluate": evaluate, "rule": RULES[rule]},
            "topology.validators": validators,
        }
        for first_step in ("counted", "overwritten")
        for evaluate in ("validator_model", "global_model")
        for validators, rule in ((0, "average"), (1, "average"), (1, "zeno"), (2, "zeno"))
    }


TRAINING: dict[str, Tree] = {
    "sgd": {"train.optimizer": {"name": "sgd", "momentum": 0.0, "weight_decay": 0.01}, "validation.rule": ZENO},
    "momentum": {"train.optimizer": {"name": "sgd", "momentum": 0.8}, "validation.rule": ZENO},
    "adam": {"train.optimizer": {"name": "adam", "lr": 0.003, "weight_decay": 0.01}, "validation.rule": ZENO},
    "decay-and-warm-up": {
        "train.lr_decay": {"factor": 0.3, "epochs": [1, 2]},
        "train.warmup": {"epochs": 1, "start": 0.2},
        "validation.rule": ZENO,
    },
    "passes": {
        "train.passes_per_epoch": 2,
        "train.lr_decay": {"factor": 0.3, "epochs": [1, 2]},
        "train.warmup": {"epochs": 1, "start": 0.2},
        "validation.rule": ZENO,
    },
    "passes-artifact": {"train.passes_per_epoch": 2, "train.epochs": 2, "validation.rule": ZENO, **ARTIFACT},
    "cnn": {"model.name": "cnn", "validation.rule": ZENO, "attack": {"kind": "negative"}},
    "more-shards-than-needed": {"data.shards": 9, "data.limit": 360, "data.split": "by_class"},
}
COMMUNICATION: dict[str, Tree] = {
    "nobody-comes": {"communication.participation": 0.0, "validation.rule": ZENO},
    "seldom-anybody": {"communication.participation": 0.2, "topology.validators": 2, "validation.rule": ZENO},
    "nothing-is-sent": {"communication.skip_rate": 1.0, "validation.rule": ZENO},
    "all-is-sent": {"communication": {"participation": 1.0, "skip_rate": 0.0}, "topology.validators": 2},
    "zeno-refuses-zeros": {"validation.rule": {**ZENO, "rho": 0.01}},
}
ROUNDS: dict[str, Tree] = {
    f"{name}{preset}": {**keys, "validation.rule": ZENO, **changes}
    for name, keys in {
        "one-step-rounds": {"train.local_steps": 1},
        "one-step-epochs": {"data.limit": 56},
        "rounds-as-epochs": {"train.local_steps": 5},
        "rounds-of-epochs": {"train.local_steps": 12},
    }.items()
    for preset, changes in {"": {}, "-artifact": ARTIFACT}.items()
}
EXPLOSIONS: dict[str, Tree] = {
    "explosion": {"attack": {"kind": "negative", "scale": 1e30, "rate": 0.3}},
    "explosion-zeno": {
        "attack": {"kind": "negative", "scale": 1e30},
        "validation.rule": {"kind": "zeno", "epsilon": 1e75, "rho": -1e75},
    },
}
BATCHNORM: dict[str, Tree] = {
    **{
        f"batchnorm-{kind}": {**RESNET, "validation.batchnorm": kind}
        for kind in ("validator", "averaged", "reestimated")
    },
    "batchnorm-artifact": {**RESNET, **ARTIFACT},
    "batchnorm-artifact-reestimated": {**RESNET, **ARTIFACT, "validation.batchnorm": "reestimated"},
    "batchnorm-observed": {**RESNET, **ARTIFACT, "validation.rule": {"kind": "average"}},
    "batchnorm-averaged-without-validators": {
        **RESNET,
        "topology.validators": 0,
        "train.epochs": 2,
        "validation": {"batchnorm": "averaged", "rule": {"kind": "average"}},
    },
}

CASES = (
    topologies() | attacks() | own_attacks() | presets() | TRAINING | COMMUNICATION | ROUNDS | EXPLOSIONS | BATCHNORM
)
