"""What is trained, on what, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from hpcps.spec.checks.paths import DATA, MODE, VALIDATORS, WORKERS
from hpcps.spec.presets import PRESETS
from hpcps.spec.problems import Problem, quote
from hpcps.spec.schema import Run
from hpcps.training.catalogue import BACKENDS, DATA_SETS, FOR_COLOUR, WITH_BATCHNORM


def _statistics_can_be_averaged(run: Run) -> Iterator[Problem]:
    if run.train.mode == "async" and run.validation.batchnorm == "averaged":
        yield Problem(
            ("validation", "batchnorm"),
            'asynchronous workers have no common moment at which to average: take "reestimated" or "validator"',
            (MODE,),
        )


def _decays_in_order(run: Run) -> Iterator[Problem]:
    lists = {
        ("train", "lr_decay", "epochs"): run.train.lr_decay.epochs,
        ("train", "lr_decay", "validator_epochs"): run.train.lr_decay.validator_epochs or (),
        ("asynchronous", "alpha_decay", "epochs"): run.asynchronous.alpha_decay.epochs,
    }
    for path, epochs in lists.items():
        if any(later <= earlier for earlier, later in pairwise(epochs)):
            yield Problem(path, f"{quote(epochs)} must rise: each epoch once, in order")


def _shards_for_all(run: Run) -> Iterator[Problem]:
    workers, shards = run.topology.workers, run.data.shards
    held_out = 1 if run.topology.validators else 0
    if shards is None and not run.topology.alone:
        return
    if shards is None:
        message = "how many shards? Without workers it does not follow from their number; the last one is trained on"
        yield Problem(("data", "shards"), message, (WORKERS,))
    elif shards < workers + held_out:
        whom = f"{workers} workers and the validators' own" if held_out else f"{workers} workers"
        yield Problem(
            ("data", "shards"),
            f"{shards} shards are too few for {whom}: use {workers + held_out} or more, or leave it out",
            (WORKERS, VALIDATORS),
        )


def _shards_fill_a_batch(run: Run) -> Iterator[Problem]:
    available, shards, batch = DATA_SETS[run.data.name].train, run.data.shards, run.train.batch_size
    if shards is None:
        return
    samples = min(available, run.data.limit or available)
    if samples // shards < batch:
        yield Problem(
            ("data", "limit") if run.data.limit else ("train", "batch_size"),
            f"{samples} training samples in {shards} shards leave {samples // shards} in each, fewer than a batch of "
            f"{batch}: use smaller batches, fewer shards or more samples",
            (("data", "limit"), ("train", "batch_size"), ("data", "shards"), WORKERS, DATA),
        )


def _limits_are_limits(run: Run) -> Iterator[Problem]:
    facts = DATA_SETS[run.data.name]
    for key, limit, size in (("limit", run.data.limit, facts.train), ("test_limit", run.data.test_limit, facts.test)):
        if limit is not None and limit > size:
            part = "test" if key == "test_limit" else "training"
            message = f"{run.data.name} has {size} {part} samples, fewer than {limit}: leave it out to use all"
            yield Problem(("data", key), message, (DATA,))


def _statistics_exist(run: Run) -> Iterator[Problem]:
    """Without BatchNorm all choices are the same run; what the preset sets anyway is none."""
    path = ("validation", "batchnorm")
    usual = PRESETS[run.fidelity][path]
    if run.validation.batchnorm != usual and run.model.name not in WITH_BATCHNORM:
        message = f"{run.model.name} has no BatchNorm, so this has no effect: leave it out"
        yield Problem(path, message, (("model", "name"),))


def _backend_has_the_model(run: Run) -> Iterator[Problem]:
    model, backend = run.model.name, run.model.backend
    if model not in BACKENDS[backend]:
        able = " or ".join(f"backend = {quote(name)}" for name, models in BACKENDS.items() if model in models)
        message = f"{model} is not among the models of {quote(backend)} ({', '.join(BACKENDS[backend])}): take {able}"
        yield Problem(("model", "name"), message, (("model", "backend"),))


def _model_takes_data(run: Run) -> Iterator[Problem]:
    model, data = run.model.name, run.data.name
    if model in FOR_COLOUR and DATA_SETS[data].shape[0] != 3:
        able = ", ".join(name for name, facts in DATA_SETS.items() if facts.shape[0] == 3)
        yield Problem(
            ("model", "name"),
            f"{model} is for colour images ({able}), and those of {data} are grey: take cnn or mlp",
            (DATA,),
        )


def _data_can_be_augmented(run: Run) -> Iterator[Problem]:
    if run.data.augment and not DATA_SETS[run.data.name].augment:
        able = ", ".join(name for name, facts in DATA_SETS.items() if facts.augment)
        yield Problem(("data", "augment"), f"only for {able}, not {run.data.name}: leave it out", (DATA,))


def _averaged_statistics_have_a_model(run: Run) -> Iterator[Problem]:
    validation = run.validation
    if validation.batchnorm == "averaged" and validation.evaluate == "validator_model":
        yield Problem(
            ("validation", "batchnorm"),
            "the workers' statistics belong to the global model, and validation.evaluate = validator_model tests "
            'another one: set evaluate = "global_model", or batchnorm = "validator" or "reestimated"',
            (("validation", "evaluate"),),
        )


def _statistics_have_workers(run: Run) -> Iterator[Problem]:
    if run.validation.batchnorm == "averaged" and run.topology.workers == 0:
        message = 'there are no workers whose statistics could be averaged: take "validator" or "reestimated"'
        yield Problem(("validation", "batchnorm"), message, (WORKERS,))


def _keys_have_an_effect(run: Run) -> Iterator[Problem]:
    """What is set must matter: else two files that differ in nothing would be two runs."""
    optimizer, data = run.train.optimizer, run.data
    for key, users in (("momentum", ("sgd", "nag")), ("betas", ("adam",))):
        if key in optimizer.model_fields_set and optimizer.name not in users:
            yield Problem(
                ("train", "optimizer", key),
                f"{optimizer.name} has no {key}, only {' and '.join(users)}: leave it out",
                (("train", "optimizer", "name"),),
            )
    steps = (
        (("train", "lr_decay"), "factor", run.train.lr_decay),
        (("train", "warmup"), "start", run.train.warmup),
        (("asynchronous", "alpha_decay"), "factor", run.asynchronous.alpha_decay),
    )
    for path, key, table in steps:
        # Epochs that are said to be none are an answer, such as the first value of a sweep.
        if key in table.model_fields_set and not table.model_fields_set & {"epochs", "validator_epochs"}:
            yield Problem((*path, key), "acts only with epochs: give them, or leave it out", ((*path, "epochs"),))
    if run.train.mps == "off":
        if run.train.device == "cpu":
            yield Problem(("train", "mps"), "without a GPU none is shared: leave it out", (("train", "device"),))
        if run.transport.kind == "inproc":
            yield Problem(("train", "mps"), "one process shares with nobody: leave it out", (("transport", "kind"),))
    if "alpha" in data.model_fields_set and data.split != "dirichlet":
        yield Problem(("data", "alpha"), 'only split = "dirichlet" uses it: leave it out', (("data", "split"),))


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    _statistics_can_be_averaged,
    _decays_in_order,
    _shards_for_all,
    _shards_fill_a_batch,
    _limits_are_limits,
    _statistics_exist,
    _backend_has_the_model,
    _model_takes_data,
    _data_can_be_augmented,
    _averaged_statistics_have_a_model,
    _statistics_have_workers,
    _keys_have_an_effect,
)
