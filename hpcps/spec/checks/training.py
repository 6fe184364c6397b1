"""Checks of model, data, training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from hpcps.data.base import Facts
from hpcps.registry import active
from hpcps.registry.config import LARGEST_RATE, SMALLEST_RATE
from hpcps.spec.presets import PRESETS
from hpcps.spec.problems import DATA, VALIDATORS, WORKERS, Problem, quote
from hpcps.spec.schema import Run


def _decays_in_order(run: Run) -> Iterator[Problem]:
    lists = {
        ("train", "lr_decay", "epochs"): run.train.lr_decay.epochs,
        ("train", "lr_decay", "validator_epochs"): run.train.lr_decay.validator_epochs or (),
        ("asynchronous", "alpha_decay", "epochs"): run.asynchronous.alpha_decay.epochs,
    }
    for path, epochs in lists.items():
        if any(later <= earlier for earlier, later in pairwise(epochs)):
            yield Problem(path, f"{quote(epochs)} must increase: list each epoch once, in order")


def _rates_are_float32_numbers(run: Run) -> Iterator[Problem]:
    """The bounds of the keys are the largest float32 numbers; here are products of several keys, and the smallest."""
    optimizer, server = run.train.optimizer, run.server.optimizer
    if optimizer.largest_rate > LARGEST_RATE:
        adaptive = optimizer.lr / (1 - optimizer.betas[0]) > LARGEST_RATE
        others = "betas" if adaptive else "weight_decay"
        message = (
            f"{optimizer.lr:g} is too large for {optimizer.name} with its {others}: a step has a factor of "
            f"{optimizer.largest_rate:.2g}, and float32 numbers end at {LARGEST_RATE:g}"
        )
        yield Problem(("train", "optimizer", "lr"), message, (("train", "optimizer", others),))
    rates = {
        ("train", "optimizer", "lr"): optimizer.lr,
        ("train", "global_lr"): run.train.global_lr,
        ("server", "optimizer", "lr"): getattr(server, "lr", 1.0),
    }
    for path, rate in rates.items():
        if isinstance(rate, float) and 0 < rate < SMALLEST_RATE:
            yield Problem(path, f"{rate:g} is too small for float32 numbers, which begin at {SMALLEST_RATE:g}")


def _shards_for_all(run: Run) -> Iterator[Problem]:
    workers, shards = run.topology.workers, run.data.shards
    held_out = 1 if run.topology.validators else 0
    if shards is None and not run.topology.alone:
        return
    if shards is None:
        message = "required, because it has no default without workers; the process trains on the last shard"
        yield Problem(("data", "shards"), message, (WORKERS,))
    elif shards < workers + held_out:
        whom = f"{workers} workers and the validators" if held_out else f"{workers} workers"
        yield Problem(
            ("data", "shards"),
            f"{shards} shards are too few for {whom}: use {workers + held_out} or more, or leave it out",
            (WORKERS, VALIDATORS),
        )


def _shards_fill_a_batch(run: Run) -> Iterator[Problem]:
    shards, samples = run.data.shards, run.data.training_size
    if shards is None:
        return
    classes = enumerate(run.heterogeneity.classes if run.topology.workers else ())
    own = [(("heterogeneity", "classes", n, "batch_size"), each.batch_size) for n, each in classes]
    for key, batch in [(("train", "batch_size"), run.train.batch_size), *own]:
        if batch is not None and samples // shards < batch:
            limit = ("data", "limit") if run.data.limit and key[0] == "train" else key
            held_out = run.data.limited_size // shards >= batch
            yield Problem(
                ("data", "holdout") if held_out else limit,
                f"{samples} training samples in {shards} shards leave {samples // shards} in each, fewer than a batch "
                f"of {batch}: use smaller batches, fewer shards or more samples{', or hold out fewer' * held_out}",
                (("data", "limit"), ("data", "holdout"), key, ("data", "shards"), WORKERS, DATA),
            )


def _holdout_has_samples(run: Run) -> Iterator[Problem]:
    data = run.data
    if data.holdout and not data.held_out_size:
        message = f"{data.holdout:g} of {data.limited_size} training samples is none: hold out a larger share"
        yield Problem(("data", "holdout"), message, (("data", "limit"), DATA))


def _limits_are_limits(run: Run) -> Iterator[Problem]:
    facts = run.data.facts
    for key, limit, size in (("limit", run.data.limit, facts.train), ("test_limit", run.data.test_limit, facts.test)):
        if limit is not None and limit > size:
            part = "test" if key == "test_limit" else "training"
            message = f"{run.data.name} has {size} {part} samples, fewer than {limit}: leave it out to use all"
            yield Problem(("data", key), message, (DATA,))


def _statistics_exist(run: Run) -> Iterator[Problem]:
    """Without BatchNorm the key has no effect; the value of the preset is allowed."""
    path = ("validation", "batchnorm")
    usual = PRESETS[run.fidelity][path]
    if run.validation.batchnorm != usual and run.model.batchnorm is False:
        message = f"{run.model.name} has no BatchNorm, so this has no effect: leave it out"
        yield Problem(path, message, (("model", "name"),))


def _backend_has_the_model(run: Run) -> Iterator[Problem]:
    model, backend = run.model, run.model.backend
    if backend not in model.backends:
        able = " or ".join(f"backend = {quote(name)}" for name in model.backends)
        others = ", ".join(n for n, other in active().of("models").usable().items() if backend in other.backends)
        message = f"{model.name} is not among the models of {quote(backend)} ({others}): use {able}"
        yield Problem(("model", "name"), message, (("model", "backend"),))


def _backend_has_the_optimizer(run: Run) -> Iterator[Problem]:
    if run.train.optimizer.name == "muon" and run.model.backend != "torch":
        message = f'muon is not among the optimizers of {quote(run.model.backend)}: use backend = "torch", or "adamw"'
        yield Problem(("train", "optimizer", "name"), message, (("model", "backend"),))


def _model_takes_data(run: Run) -> Iterator[Problem]:
    model, shape = run.model, run.data.input_facts.shape
    targets = run.data.facts.targets
    if model.sequential != (targets > 1):
        does = "a label for each element of a sample" if model.sequential else "one label for a sample"
        has = "one label" if model.sequential else f"{targets} labels"
        able = next(n for n, each in active().of("models").usable().items() if each.sequential == (targets > 1))
        message = f"{model.name} predicts {does}, but samples of {run.data.name} have {has}: use another model, such as"
        yield Problem(("model", "name"), f"{message} {able if targets > 1 else 'mlp'}", (DATA,))
        return
    whose = f"samples of {run.data.name} have" if run.data.resize is None else "resized samples have"
    if model.channels is not None and (len(shape) != 3 or shape[0] != model.channels):
        able = ", ".join(name for name, channels in _channels().items() if channels == model.channels)
        yield Problem(
            ("model", "name"),
            f"{model.name} is for images of {model.channels} channels ({able}), but {whose} "
            f"the shape {list(shape)}: use another model, such as mlp",
            (DATA,),
        )
    elif model.smallest is not None and (len(shape) != 3 or min(shape[1:]) < model.smallest):
        least = max(model.smallest, *shape[1:]) if len(shape) == 3 else 0
        enlarge = f"set data.resize = {least} or more, or " if least else ""
        yield Problem(
            ("model", "name"),
            f"{model.name} is for images of at least {model.smallest} by {model.smallest}, but {whose} "
            f"the shape {list(shape)}: {enlarge}use another model, such as mlp",
            (DATA, ("data", "resize")),
        )


def _batches_have_statistics(run: Run) -> Iterator[Problem]:
    """BatchNorm needs two values of each channel. One image whose feature maps have one pixel gives it one value."""
    model, shape = run.model, run.data.input_facts.shape
    if not model.batchnorm or len(shape) != 3 or max(shape[1:]) > model.reduction:
        return
    classes = enumerate(run.heterogeneity.classes)
    own = [(("heterogeneity", "classes", n, "batch_size"), each.batch_size) for n, each in classes]
    for path, size in [(("train", "batch_size"), run.train.batch_size), *own]:
        if size == 1:
            yield Problem(
                path,
                f"the last feature maps of {model.name} have one pixel for samples of the shape {list(shape)}, and "
                "BatchNorm needs more than one value: use 2 or more",
                (("model", "name"), DATA),
            )


def _channels() -> dict[str, int]:
    """Return the channels of each image data set whose shape does not depend on its keys."""
    facts = {name: data.facts for name, data in active().of("datasets").usable().items()}
    return {name: each.shape[0] for name, each in facts.items() if isinstance(each, Facts) and len(each.shape) == 3}


def _data_can_be_augmented(run: Run) -> Iterator[Problem]:
    if run.data.augment and not run.data.facts.augment:
        sets = active().of("datasets").usable()
        able = ", ".join(name for name, data in sets.items() if getattr(data.facts, "augment", False))
        yield Problem(("data", "augment"), f"only for {able}, not {run.data.name}: leave it out", (DATA,))


def _images_can_be_resized(run: Run) -> Iterator[Problem]:
    size, shape, path = run.data.resize, run.data.facts.shape, ("data", "resize")
    if size is None:
        return
    if len(shape) != 3:
        message = f"only for images, but samples of {run.data.name} have the shape {list(shape)}: leave it out"
        yield Problem(path, message, (DATA,))
    elif size < max(shape[1:]) or shape[1:] == (size, size):
        height, width = shape[1:]
        message = f"the images of {run.data.name} are {height} by {width}, and can only be enlarged: use a larger"
        yield Problem(path, f"{message} number, or leave it out", (DATA,))


def _keys_have_an_effect(run: Run) -> Iterator[Problem]:
    """A key that is set must have an effect; otherwise two files with the same results would be two runs."""
    optimizer, data = run.train.optimizer, run.data
    for key, users in (("momentum", ("sgd", "nag", "muon")), ("betas", ("adam", "adamw", "muon"))):
        if key in optimizer.model_fields_set and optimizer.name not in users:
            yield Problem(
                ("train", "optimizer", key),
                f"{optimizer.name} has no {key}, only {', '.join(users[:-1])} and {users[-1]}: leave it out",
                (("train", "optimizer", "name"),),
            )
    decay = run.train.lr_decay
    for key in ("final",) if decay.schedule == "steps" else ("factor", "epochs", "validator_epochs"):
        if key in decay.model_fields_set:
            message = f"the schedule {quote(decay.schedule)} does not use it: leave it out"
            yield Problem(("train", "lr_decay", key), message, (("train", "lr_decay", "schedule"),))
    steps = (
        (("train", "lr_decay"), "factor", run.train.lr_decay),
        (("train", "warmup"), "start", run.train.warmup),
        (("asynchronous", "alpha_decay"), "factor", run.asynchronous.alpha_decay),
    )
    for path, key, table in steps:
        # An explicit empty list of epochs is valid, for example as the first value of a sweep.
        if getattr(table, "schedule", "steps") == "cosine":
            continue
        if key in table.model_fields_set and not table.model_fields_set & {"epochs", "validator_epochs"}:
            message = "has an effect only with epochs: set them, or leave it out"
            yield Problem((*path, key), message, ((*path, "epochs"),))
    mean, std = data.facts.mean or (0.0,), data.facts.std or (1.0,)
    if not data.normalise and not data.facts.measured and set(mean) == {0} and set(std) == {1}:
        message = f"has no effect: the samples of {data.name} are not normalised anyway: leave it out"
        yield Problem(("data", "normalise"), message, (DATA,))
    if "alpha" in data.model_fields_set and data.split.kind != "dirichlet":
        yield Problem(("data", "alpha"), 'only split = "dirichlet" uses it: leave it out', (("data", "split"),))
    elif "alpha" in data.model_fields_set and getattr(data.split, "alpha", None) is not None:
        message = "the split has an alpha of its own: leave one of them out"
        yield Problem(("data", "alpha"), message, (("data", "split"),))
    if data.validation_split == "as_workers" and data.split.alike:
        message = 'has no effect with split = "iid", which makes all shards in the same way: leave it out'
        yield Problem(("data", "validation_split"), message, (("data", "split"),))
    elif data.validation_split == "as_workers" and data.shards is not None and data.shards <= run.topology.workers:
        message = "has no effect, because every shard belongs to a worker: leave it out"
        yield Problem(("data", "validation_split"), message, (("data", "shards"), WORKERS))


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    _decays_in_order,
    _rates_are_float32_numbers,
    _shards_for_all,
    _shards_fill_a_batch,
    _holdout_has_samples,
    _limits_are_limits,
    _statistics_exist,
    _backend_has_the_model,
    _backend_has_the_optimizer,
    _model_takes_data,
    _batches_have_statistics,
    _data_can_be_augmented,
    _images_can_be_resized,
    _keys_have_an_effect,
)
