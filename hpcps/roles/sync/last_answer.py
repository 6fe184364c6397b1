"""The last answer of a worker, which a checkpoint of a run with a quorum contains."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hpcps.numerics.state import State
from hpcps.numerics.vectors import on_host
from hpcps.protocol.messages import Absent, Flag, Peer, Update


class LastAnswer:
    """The last answer of a worker, and how long the worker took for it.

    A checkpoint does not change which rounds a late answer misses. So it contains the answers that combiners had not
    got when it was written; after a resume, each is sent as long after the start as it was made after the checkpoint.

    Attributes:
        round: the round of the model that it answers.
        messages: its messages, with their receivers.
        took: seconds from the model to the answer.
    """

    def __init__(self) -> None:
        self.round = 0
        self.messages: list[tuple[Peer, Update | Absent]] = []
        self.took = 0.0
        self._began = 0.0

    def begin(self, round: int, now: float) -> None:
        """Note when the worker adopted the model of a round."""
        self.round, self._began = round, now

    def end(self, now: float) -> None:
        """Note when the answer is made; its messages follow."""
        self.took, self.messages = now - self._began, []

    def state(self) -> State:
        """Return the answer, with copies of its payloads."""
        arrays: dict[str, NDArray[Any]] = {}
        parts: list[list[object]] = []
        for number, (to, message) in enumerate(self.messages):
            note: dict[str, object] = {} if message.position is None else {"position": message.position}
            if isinstance(message, Absent):
                note |= {} if message.abandoned is None else {"abandoned": message.abandoned}
                parts.append([str(to), message.code, 0, 0, note])
            else:
                parts.append([str(to), message.code, message.shard, message.partition, note])
                arrays[f"mask {number}"], arrays[f"payload {number}"] = message.mask, on_host(message.values)
        return State(arrays, {"round": self.round, "took": self.took, "parts": parts})

    def restore(self, state: State) -> None:
        """Restore the answer of a checkpoint."""
        facts, arrays = state.facts, state.arrays
        self.round, self.took, self.messages = facts["round"], facts["took"], []
        for number, (to, code, shard, partition, note) in enumerate(facts["parts"]):
            message: Update | Absent
            position = note.get("position")  # not in a checkpoint of an earlier version
            if code == Absent.code:
                message = Absent(round=self.round, flags=Flag.NONE, abandoned=note.get("abandoned"), position=position)
            else:
                mask, values = arrays[f"mask {number}"], arrays[f"payload {number}"]
                message = Update(
                    round=self.round, shard=shard, partition=partition, flags=Flag.NONE, position=position, mask=mask,
                    values=values,
                )  # fmt: skip
            self.messages.append((Peer.parse(to), message))
