"""Tries the components of runs before anything is started, so that what is wrong with them is one error."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Set
from importlib.util import find_spec

import numpy as np

from hpcps.attacks import (
    AdversaryContext,
    Attack,
    AttackContext,
    ByzantineAttack,
    LabelAttack,
    NoAttack,
    Omniscient,
)
from hpcps.compression import BaseCompressor, Codec, Compressor, DeMo, SparseCompressor, SparseLoco
from hpcps.data.parts import open_parts
from hpcps.data.shards import all_shards, shard_size
from hpcps.errors import DataError, message_of
from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Updates
from hpcps.optimizers import ServerOptimizer, Stepper
from hpcps.registry import BUILT_IN
from hpcps.registry.failures import errors_of, returned
from hpcps.rules import Arrays, AsyncContext, AsyncRule, BaseRule, Context, Rule, combine_finite
from hpcps.spec.plugins import used
from hpcps.spec.schema import Run

_LAYOUT = Layout.of([("weight", (64, 16)), ("bias", (16,))])
"""The blocks of the updates that rules and attacks are tried with: enough elements for a rule that selects some."""


def try_data(run: Run) -> None:
    """Open the data set of a run and read all labels and a sample or two of each part.

    Raises:
        DataError: a file is missing, truncated or corrupt.
        SpecError: the data set is not usable.
    """
    for part in open_parts(run.data):
        part.labels()
        part.read(np.unique([0, part.size - 1]))


def try_rule(rule: BaseRule, n: int) -> None:
    """Call a rule on made-up updates of two blocks, the first of which lacks a block.

    Args:
        rule: the rule.
        n: the number of updates that a combiner of the run receives: a rule may be made for that number.

    Raises:
        SpecError: the rule failed, or returned something else than required.
    """
    draws = np.random.default_rng(0)
    rows, reference = draws.standard_normal((n, _LAYOUT.size), np.float32), np.ones(_LAYOUT.size, np.float32)
    sent = np.ones((n, len(_LAYOUT.blocks)), np.bool_)
    sent[0, 0] = False
    rows[0, ~_LAYOUT.spread(sent[0])] = 0
    needs = rule.requires
    values = (
        reference if "reference" in needs else None,
        (lambda vector: float(np.square(vector - reference).mean())) if "loss" in needs else None,
        draws if "random" in needs else None,
        Arrays(writable="state" in needs),
    )
    if isinstance(rule, AsyncRule):
        with errors_of(rule, "its weight(0) failed"):
            float(rule.weight(0))
        rule.checked_decision(rows[0], AsyncContext(*values, layout=_LAYOUT, sent=sent[0]))
    elif isinstance(rule, Rule):
        payloads = [row[_LAYOUT.spread(mask)] for row, mask in zip(rows, sent, strict=True)]
        weights = None if rule.refused_weights() else np.arange(1.0, n + 1)
        combine_finite(rule, Updates(_LAYOUT, payloads, sent, weights=weights), Context(*values))


def try_attack(attack: ByzantineAttack | NoAttack, classes: int) -> None:
    """Let an attack corrupt one made-up block, made-up labels or made-up updates.

    Raises:
        SpecError: the attack failed, or returned something else than it must.
    """
    draws, block = np.random.default_rng(0), _LAYOUT.blocks[0]
    if isinstance(attack, Omniscient):
        honest, own = (draws.standard_normal((n, _LAYOUT.size), np.float32) for n in (3, 1))
        rule = (lambda rows: rows.mean(axis=0)) if "rule" in attack.needs else None
        context = AdversaryContext(
            n=4, f=1, layout=_LAYOUT, random=draws, state=Arrays(), workers=(0, 1, 2), byzantine=(3,), rule=rule
        )
        attack.replacements(honest, own, context)
    elif isinstance(attack, Attack):
        update = draws.standard_normal(block.size, np.float32)
        change = draws.standard_normal(block.size, np.float32) if "model" in attack.needs else None
        attack.replace(update, AttackContext(draws, 0, block.name, model_change=change))
    elif isinstance(attack, LabelAttack):
        attack.relabelled(draws.integers(0, classes, 32), classes)


def try_optimizer(optimizer: ServerOptimizer) -> None:
    """Let a server optimizer take two steps with made-up updates.

    Raises:
        SpecError: it is not usable.
    """
    stepper, model = Stepper(optimizer, _LAYOUT.size), np.zeros(_LAYOUT.size, np.float32)
    for _ in range(2):
        stepper.apply(np.linspace(-1, 1, _LAYOUT.size, dtype=np.float32), model, model)
        stepper.turn()


def try_compressor(compressor: BaseCompressor) -> None:
    """Encode and decode a made-up update of two blocks.

    Raises:
        SpecError: the compressor is not usable.
    """
    if not isinstance(compressor, Compressor):
        return
    codec = Codec(compressor, _LAYOUT)
    values, mask = np.linspace(-1, 1, _LAYOUT.size, dtype=np.float32), np.ones(2, np.bool_)
    for each in (values, np.full_like(values, np.nan)):
        given = each.copy()
        encoded = codec.encode(_LAYOUT, 0, mask, given, np.empty(codec.most_elements(_LAYOUT, 0), np.float32))
        if not np.array_equal(given, each, equal_nan=True):
            raise returned(compressor, "write", "after it had changed its values, which it must not change")
        try:
            back = codec.decode(_LAYOUT, 0, mask, encoded)
        except ValueError as error:
            raise returned(compressor, "write", f"a code that its read() refuses: {message_of(error)}") from error
    if np.isfinite(back).any():
        raise returned(compressor, "write", "a code of finite values for values that are NaN")


def try_components(runs: Iterable[Run]) -> None:
    """Try the components that are not built in: data sets and models as far as their files and framework are here.

    Raises:
        SpecError: one of them is not usable.
    """
    tried: set[object] = set()
    for run in runs:
        data, model = run.data, run.model
        foreign = {key for key, entry in used(run).items() if entry.origin != BUILT_IN}
        if not foreign:
            continue
        _try_arithmetic(run, foreign, tried)
        key = data.model_dump_json(), model.model_dump_json(), run.seed, run.topology.workers, run.largest_batch
        if key in tried:
            continue
        tried.add(key)
        try:
            if "data" in foreign:
                try_data(run)
            if "data.split" in foreign:
                size = shard_size(data, run.largest_batch)
                labels, least = open_parts(data)[0].labels, run.largest_batch
                all_shards(data, size, run.seed, labels, held_out=run.holds_out, least=least)
        except DataError:
            pass  # the files are not here
        if foreign & {"data", "model"}:
            _try_model(run)


def _try_model(run: Run) -> Layout | None:
    """Build the network of a run, and return its blocks; None if its framework or its device is not for this process.

    A network may need the GPU, which is not for the process that starts the others.
    """
    if run.model.backend != "torch" or run.train.device == "cuda" or not find_spec("torch"):
        return None
    import torch

    from hpcps.training.pytorch.network import build_network

    network = build_network(run.model, run.data.input_facts, torch.device("cpu"))
    return Layout.of([(name, parameter.shape) for name, parameter in network.named_parameters()])


def warnings_of_compression(runs: Iterable[Run]) -> Iterator[str]:
    """Yield warnings about keys of compressors that do not fit the blocks of the model."""
    layouts: dict[str, Layout | None] = {}
    for run in runs:
        compressor, name, where = run.communication.compression, run.model.name, "communication.compression"
        if not isinstance(compressor, Compressor):
            continue
        sparse = compressor if isinstance(compressor, SparseCompressor | SparseLoco | DeMo) else None
        given = sparse.k if sparse else 0
        if 0.5 < given < 1:
            yield f"{where}.k: at most half of the values of a block are sent, and k = {given:g} is more: use less"
        k = given if given >= 1 else 0
        # Without their shape, tiles of blocks are not larger than with it.
        smallest = sparse.part_size(compressor.min_bytes // 4) if sparse else 0
        if 2 * k <= smallest and compressor.min_bytes <= type(compressor).model_fields["min_bytes"].default:
            continue  # no block is too small, and nobody waits for the framework
        key = f"{run.model.model_dump_json()} {run.data.input_facts}"
        if key not in layouts:
            layouts[key] = _try_model(run)
        layout = layouts[key]
        blocks = layout.blocks if layout else ()
        encoded = [block for block in blocks if 4 * block.size >= compressor.min_bytes]
        if blocks and not encoded:
            largest = 4 * max(block.size for block in blocks)
            yield f"{where}.min_bytes: the largest block of {name} has {largest} bytes, so nothing is encoded: use less"
        sizes = [sparse.for_block(block.shape).part_size(block.size) if sparse else 0 for block in encoded]
        if short := [(block, size) for block, size in zip(encoded, sizes, strict=True) if 2 * k > size]:
            block, size = short[0]
            few = f"{len(short)} of {len(encoded)} encoded blocks of {name}, such as {block.name}"
            whose = "their values" if size == block.size else "the values of each part"
            instead = f"send half of {whose} ({size // 2}) instead of {k:g}"
            yield f"{where}.k: {few}, {instead}: use less, or a share of at most 0.5"


def _try_arithmetic(run: Run, foreign: Set[str], tried: set[object]) -> None:
    """Try the components of a run that compute on updates, once for all runs that have the same."""
    rule, attack, optimizer = run.validation.rule, run.attack, run.server.optimizer
    if not run.topology.workers:
        return  # there is no update
    compressor = run.communication.compression
    fewest, classes = run.combined_at_once[0], run.data.facts.classes
    trials: dict[str, tuple[object, Callable[[], None]]] = {
        "validation.rule": ((rule.model_dump_json(), fewest), lambda: try_rule(rule.model_copy(deep=True), fewest)),
        "server.optimizer": (optimizer.model_dump_json(), lambda: try_optimizer(optimizer.model_copy(deep=True))),
        "communication.compression": (
            compressor.model_dump_json(),
            lambda: try_compressor(compressor.model_copy(deep=True, update={"min_bytes": 0})),
        ),
        "attack": ((attack.model_dump_json(), classes), lambda: try_attack(attack.model_copy(deep=True), classes)),
    }
    for key, (case, trial) in trials.items():
        if not any(each.startswith(key) for each in foreign) or (key, case) in tried:
            continue
        tried.add((key, case))
        # The values are made up, so warnings about them are not for the user. A copy is tried, because a component may
        # keep in itself what it has computed.
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            trial()
