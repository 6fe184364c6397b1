"""A plugin whose rules need whatever a rule may need."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.rules import AsyncRule, Decision, Rule


class Momentum(Rule):
    """A running mean of the means of the rounds, with noise."""

    needs: ClassVar = frozenset({"state", "random"})
    kind: Literal["momentum"] = "momentum"
    beta: float = Field(0.5, ge=0, lt=1, description="What is kept of the rounds before.")

    def aggregate(self, updates, context):
        mean = context.state.setdefault("mean", np.zeros(updates.shape[1], np.float32))
        mean *= self.beta
        mean += (1 - self.beta) * updates.mean(axis=0)
        context.state["rounds"] = context.state.get("rounds", 0) + 1
        return mean + 1e-3 * context.random.standard_normal(len(mean), dtype=np.float32) / context.state["rounds"]


class Lowest(Rule):
    """The update with which the model of the round has the lowest loss, if that is lower than without any."""

    needs: ClassVar = frozenset({"loss"})
    kind: Literal["lowest"] = "lowest"

    def aggregate(self, updates, context):
        candidates = [np.zeros_like(updates[0]), *updates]
        losses = [context.loss(update) for update in candidates]
        assert losses == [context.loss(update) for update in candidates]
        best = int(np.argmin(losses))
        return candidates[best], np.arange(1, len(candidates)) == best


class Everything(Rule):
    """The updates that are better than a random share of the validator's own, averaged with those of the last round."""

    needs: ClassVar = frozenset({"reference", "loss", "random", "state"})
    kind: Literal["everything"] = "everything"

    def aggregate(self, updates, context):
        limit = context.loss(context.random.random() * context.reference)
        good = np.array([context.loss(update) < limit for update in updates])
        mean = updates[good].mean(axis=0) if good.any() else np.zeros(updates.shape[1], np.float32)
        last = context.state.get("last", np.zeros_like(mean))
        context.state["last"] = mean
        return (mean + last) / 2, good


class AsyncEverything(AsyncRule):
    """Applies an update, scaled by chance, if it lowers the loss more than a share of the last one that did."""

    needs: ClassVar = frozenset({"reference", "loss", "random", "state"})
    kind: Literal["async_everything"] = "async_everything"

    def decide(self, update, context):
        update *= np.float32(context.random.uniform(0.5, 1.0))
        gain = context.loss(np.zeros_like(update)) - context.loss(update + 0.1 * context.reference)
        if gain < 0.1 * context.state.get("gain", -10.0):
            return Decision.accept(np.zeros_like(context.sent))
        context.state["gain"] = gain
        return Decision.accept(context.sent)


class AsyncMomentum(AsyncRule):
    """A running mean of the updates, with noise."""

    needs: ClassVar = frozenset({"random", "state"})
    kind: Literal["async_momentum"] = "async_momentum"

    def decide(self, update, context):
        mean = context.state.setdefault("mean", np.zeros_like(update))
        mean += 0.5 * (update - mean)
        context.state["updates"] = context.state.get("updates", 0) + 1
        update[:] = mean + 1e-3 * context.random.standard_normal(len(mean), dtype=np.float32)
        return Decision.accept(context.sent)
