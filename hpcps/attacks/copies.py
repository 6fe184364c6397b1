"""Attacks that send the work of others: the last change of the model, or the update of an honest worker."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Attack, AttackContext, Need
from hpcps.attacks.omniscient import AdversaryContext, Moments, Omniscient, centred_products, power_of_two, strips
from hpcps.attacks.values import noise_like
from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Vector
from hpcps.registry.config import MOST, MOST_ROLES


class FreeRider(Attack):
    """u becomes c, the change of the global model between the last two models that the worker got; or |c| * g / |g|.

    g ~ N(0, 1) elementwise, for each block. Before the worker has two models, it sends zeros. The worker takes its
    local steps all the same, so that rounds and epochs take the same time as without the attack; it does not use the
    result.

    Source: delta weights in J. Lin, M. Du, J. Liu, "Free-riders in federated learning: attacks and defenses",
    arXiv:1911.12560.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"model"})

    kind: Literal["free_rider"] = "free_rider"
    sends: Literal["change", "noise"] = Field(
        "change", description="`change`: the last change of the model; `noise`: noise with its norm."
    )
    scope: Literal["worker"] = Field(
        "worker", description="`worker`: floor(rate * workers) fixed attackers; a free rider is a whole worker."
    )

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        change = context.model_change
        assert change is not None, "the attack needs `model`"
        if self.sends == "change":
            block[:] = change
        else:
            noise_like(change, block, 1.0, context.random)


class Copycat(Omniscient):
    """Each Byzantine worker sends the update of another worker, the next honest one of its combiner.

    The next one has the next higher index; after the last comes the first. With round = "last", it sends what that
    worker sent before its latest update, and its own update while there is nothing. It claims the work of others and
    needs no training; the peer-to-peer network Templar searches for such copies. In `mimic`, all Byzantine workers copy
    the same worker.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"honest", "own"})

    kind: Literal["copycat"] = "copycat"
    round: Literal["this", "last"] = Field("this", description="The round whose update is copied.")

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        following = np.searchsorted(context.workers, context.byzantine) % len(honest)
        if self.round == "this":
            return honest[following]
        found = own.copy()
        for row, index in zip(found, following, strict=True):
            latest, before = (f"{which} of {context.workers[index]}" for which in ("latest", "before"))
            # In asynchronous training, the honest worker may have sent nothing since the last call.
            if latest not in context.state or not np.array_equal(context.state[latest], honest[index]):
                if latest in context.state:
                    context.state[before] = context.state[latest]
                context.state[latest] = honest[index].copy()
            row[:] = context.state.get(before, row)
        return found


class Mimic(Omniscient):
    """All Byzantine workers send the update of the same honest worker, which then counts f + 1 times.

    After Karimireddy, He and Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022.
    """

    kind: Literal["mimic"] = "mimic"
    worker: int = Field(
        0,
        ge=0,
        le=MOST_ROLES,
        description="Index of the worker; if it is not an honest one of the combiner, the next that is, or the first.",
    )

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        copied: Vector = honest[np.searchsorted(context.workers, self.worker) % len(honest)]
        return copied


class MimicVariance(Omniscient):
    """All Byzantine workers send the update of the honest worker that is extreme where honest updates differ most.

    In the first rounds, t = 0, 1, …, the attack learns the direction z of most variance by Oja's method: m is the mean
    of all honest updates so far, c the sum of <x - m, z> (x - m) over the honest updates x of the round, and z becomes
    t / (t + 1) z + 1 / (t + 1) c / |c|, normalised. The attack copies the worker with the largest |<x, z>|, and after
    these rounds always the worker of the last of them; if that one does not take part, again the one with the largest
    |<x, z>|. After Karimireddy, He and Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR
    2022. The first z is the exact direction of the first round; the authors' and ByzFL's is random. The authors' code
    takes the largest <x, z>. ByzFL copies the first worker while it learns, and then chooses anew in each round.
    """

    kind: Literal["mimic_variance"] = "mimic_variance"
    rounds: int = Field(
        20,
        ge=1,
        le=MOST,
        description="Number of rounds in which the attack learns the direction; in asynchronous training, "
        "of updates of Byzantine workers.",
    )

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        state = context.state
        seen = int(state["rounds"]) if "rounds" in state else 0
        if seen >= self.rounds and int(state["worker"]) in context.workers:
            copied: Vector = honest[context.workers.index(int(state["worker"]))]
            return copied
        if seen == 0:
            found = Moments.of(honest)
            state["mean"], state["direction"] = found.mean, first_direction(honest, found)
        elif seen < self.rounds:
            share = 1 / (seen + 1)
            state["mean"] = (1 - share) * state["mean"] + share * Moments.of(honest).mean
            turned = _turned(honest, state["mean"], state["direction"])
            state["direction"] = unit_vector((1 - share) * state["direction"] + share * turned)
        chosen = int(np.argmax(np.abs(_inner(honest, 0.0, state["direction"]))))
        if seen < self.rounds:
            state["rounds"], state["worker"] = np.array(seen + 1), np.array(context.workers[chosen])
        copied = honest[chosen]
        return copied


def first_direction(rows: Vector, found: Moments) -> Float64:
    """Return the direction in which rows `[h, d]` differ most, of norm 1 and any sign; zero if all rows are equal."""
    unit = power_of_two(float(found.deviation.max(initial=0.0)) * np.sqrt(len(rows)))
    weights = np.linalg.eigh(centred_products(rows, found.mean, unit))[1][:, -1]
    return unit_vector(_sum(rows, found.mean, weights))


def unit_vector(vector: Float64) -> Float64:
    """Return a vector divided by its norm; a zero vector unchanged."""
    largest = np.abs(vector).max(initial=0.0)
    if not largest > 0:
        return vector
    scaled: Float64 = vector / largest  # so that squares neither overflow nor underflow
    scaled /= np.sqrt(np.square(scaled).sum())
    return scaled


def _turned(rows: Vector, mean: Float64, direction: Float64) -> Float64:
    """Return the covariance of the rows around the mean, applied to the direction and normalised."""
    return unit_vector(_sum(rows, mean, _inner(rows, mean, direction)))


def _inner(rows: Vector, mean: Float64 | float, direction: Float64) -> Float64:
    """Return the inner products of the rows, minus the mean, and the direction: `[h]`."""
    mean = np.broadcast_to(mean, rows.shape[1:])
    total = np.zeros(len(rows))
    for columns in strips(*rows.shape):
        total += ((rows[:, columns] - mean[columns]) * direction[columns]).sum(axis=1)
    return total


def _sum(rows: Vector, mean: Float64, weights: Float64) -> Float64:
    """Return the sum of the rows, minus the mean, times the weights: `[d]`."""
    total = np.empty(rows.shape[1])
    for columns in strips(*rows.shape):
        total[columns] = ((rows[:, columns] - mean[columns]) * weights[:, None]).sum(axis=0)
    return total
