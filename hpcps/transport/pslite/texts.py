"""The allgather of texts: the scheduler collects a text from each process and sends the list to all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from hpcps.transport.pslite.encoding import MalformedFrameError


@dataclass(frozen=True)
class Text:
    """The text of one process.

    Attributes:
        turn: the number of the allgather.
        rank: the rank of the process.
        launch: the fingerprint of its launch.
        text: the text.
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
            MalformedFrameError: the frame is not the text of a process.
        """
        match _json(frame):
            case [int(turn), int(rank), str(launch), str(text)]:
                return Text(turn, rank, launch, text)
        raise MalformedFrameError("it is no text of a process")


@dataclass(frozen=True)
class Everyone:
    """The texts of all processes in one allgather.

    Attributes:
        turn: the number of the allgather.
        nodes: the node id of each rank.
        texts: the text of each rank.
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
            MalformedFrameError: the frame is not a list of the texts of `size` processes.
        """
        match _json(frame):
            case [int(turn), [*nodes], [*texts]]:
                numbers = tuple(node for node in nodes if isinstance(node, int))
                words = tuple(text for text in texts if isinstance(text, str))
                if len(nodes) == len(texts) == len(numbers) == len(words) == size:
                    return Everyone(turn, numbers, words)
        raise MalformedFrameError(f"it is no list of the texts of {size} processes")


class Texts:
    """The texts that the scheduler has collected; any thread may add one."""

    def __init__(self, launch: str, size: int) -> None:
        self._launch = launch
        self._size = size
        self._lock = Lock()
        self._nodes: dict[int, int] = {}
        self._turns: dict[int, dict[int, str]] = {}

    def add(self, node: int, told: Text) -> tuple[str, Everyone | None]:
        """Add a text; return its problem (or an empty text), and all texts if this was the last one (else None)."""
        with self._lock:
            if told.launch != self._launch or not 0 <= told.rank < self._size:
                return f"node {node} is of another launch", None
            if self._nodes.setdefault(told.rank, node) != node:
                return f"node {node} claims rank {told.rank}, which node {self._nodes[told.rank]} has", None
            turn = self._turns.setdefault(told.turn, {})
            if told.rank in turn:
                return f"rank {told.rank} sends a second text", None
            turn[told.rank] = told.text
            if len(turn) < self._size:
                return "", None
            del self._turns[told.turn]
            ranks = range(self._size)
            return "", Everyone(told.turn, _ordered(self._nodes, ranks), tuple(turn[rank] for rank in ranks))

    def who(self, node: int) -> int | None:
        """Return the rank of a node, or None if it has sent no text yet."""
        with self._lock:
            return next((rank for rank, id_ in self._nodes.items() if id_ == node), None)


def _ordered(nodes: dict[int, int], ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(nodes[rank] for rank in ranks)


def _json(frame: bytes) -> object:
    try:
        return json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise MalformedFrameError(f"it is no JSON: {error}") from None
