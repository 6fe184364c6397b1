"""Byzantine workers that send other workers' updates as their own."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Need
from hpcps.attacks.context import AdversaryContext
from hpcps.attacks.omniscient import Omniscient
from hpcps.numerics.layout import Vector


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
        """See `Omniscient.craft`; with `last`, the copied updates are its state."""
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
