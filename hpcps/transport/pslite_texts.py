"""What nodes tell all others at once: the scheduler gathers a text of each and gives everyone the list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from hpcps.transport.pslite.encoding import MalformedFrameError


@dataclass(frozen=True)
class Text:
    """What one process tells the others.

    Attributes:
        turn: counts the times that all have told something.
        rank: whose it is.
        launch: names the launch, which strangers are not of.
        text: what it says.
    """

    turn: int
    rank: int
    launch: str
    text: str

    def encode(self) -> bytes:
        """Return its bytes."""
        return json.dumps([self.turn, self.rank, self.launch, self.text]).encode()

    @staticmethod
    def decode(frame: bytes) -> Text:
        """Read it back.

        Raises:
            MalformedFrameError: it is none.
        """
        match _json(frame):
            case [int(turn), int(rank), str(launch), str(text)]:
                return Text(turn, rank, launch, text)
        raise MalformedFrameError("it is no text of a process")


@dataclass(frozen=True)
class Everyone:
    """What all have told at one turn.

    Attributes:
        turn: which.
        nodes: the node of each rank.
        texts: what each says, by rank.
    """

    turn: int
    nodes: tuple[int, ...]
    texts: tuple[str, ...]

    def encode(self) -> bytes:
        """Return its bytes."""
        return json.dumps([self.turn, self.nodes, self.texts]).encode()

    @staticmethod
    def decode(frame: bytes, size: int) -> Everyone:
        """Read it back.

        Raises:
            MalformedFrameError: it is not that of so many processes.
        """
        match _json(frame):
            case [int(turn), [*nodes], [*texts]]:
                numbers = tuple(node for node in nodes if isinstance(node, int))
                words = tuple(text for text in texts if isinstance(text, str))
                if len(nodes) == len(texts) == len(numbers) == len(words) == size:
                    return Everyone(turn, numbers, words)
        raise MalformedFrameError(f"it is no list of the texts of {size} processes")


class Texts:
    """The scheduler's collection; any thread may add to it."""

    def __init__(self, launch: str, size: int) -> None:
        self._launch = launch
        self._size = size
        self._lock = Lock()
        self._nodes: dict[int, int] = {}
        self._turns: dict[int, dict[int, str]] = {}

    def add(self, node: int, told: Text) -> tuple[str, Everyone | None]:
        """Take a text; return what is wrong with it, if anything, and what all have told if it was the last."""
        with self._lock:
            if told.launch != self._launch or not 0 <= told.rank < self._size:
                return f"node {node} is of another launch", None
            if self._nodes.setdefault(told.rank, node) != node:
                return f"node {node} says it is rank {told.rank}, and so does node {self._nodes[told.rank]}", None
            turn = self._turns.setdefault(told.turn, {})
            if told.rank in turn:
                return f"rank {told.rank} tells something twice", None
            turn[told.rank] = told.text
            if len(turn) < self._size:
                return "", None
            del self._turns[told.turn]
            ranks = range(self._size)
            return "", Everyone(told.turn, _ordered(self._nodes, ranks), tuple(turn[rank] for rank in ranks))

    def who(self, node: int) -> int | None:
        """Return the rank of a node, if it has told it."""
        with self._lock:
            return next((rank for rank, id_ in self._nodes.items() if id_ == node), None)


def _ordered(nodes: dict[int, int], ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(nodes[rank] for rank in ranks)


def _json(frame: bytes) -> object:
    try:
        return json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise MalformedFrameError(f"it is no JSON: {error}") from None
