"""The texts of collective operations: each process sends one to the scheduler, which sends all to every process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from threading import Lock
from typing import NamedTuple


class Text(NamedTuple):
    """The text of one process.

    Attributes:
        turn: the number of the allgather; `JOINS` from a replacement, which asks for that of the next one.
        rank: the rank of the process.
        launch: the fingerprint of its launch.
        text: the text.
    """

    turn: int
    rank: int
    launch: str
    text: str


class Everyone(NamedTuple):
    """The texts of all processes in one allgather.

    Attributes:
        turn: the number of the allgather; for a replacement that joins, that of the next one, or `OVER`.
        texts: the text of each rank, empty for a process that is lost; no text for a replacement that joins.
        seats: for a replacement that joins: of each server the node that it is now, and that of its standby, if any.
    """

    turn: int
    texts: tuple[str, ...]
    seats: tuple[tuple[int, ...], ...] = ()


JOINS, OVER = -1, -2
"""As `turn`: a replacement joins; it is too late."""


class Texts:
    """The texts that the scheduler has collected; any thread may add one.

    Args:
        launch: the fingerprint of the launch.
        ids: the node id of each rank.
        last: the node ids of server 0 and its standby: a run is over when one of them has finished.
        pairs: the ranks of each server and its standby.
    """

    def __init__(
        self, launch: str, ids: Sequence[int], last: Collection[int], pairs: Iterable[tuple[int, int]] = ()
    ) -> None:
        self._launch, self._ids, self._last = launch, tuple(ids), frozenset(last)
        self._other = {rank: other for pair in pairs for rank, other in (pair, pair[::-1])}
        self._lock = Lock()
        self._present = set(range(len(ids)))
        self._late: set[int] = set()
        self._turns: dict[int, dict[int, str]] = {}
        self._next = 0
        self._run_ends_with: int | None = None

    def add(self, node: int, sent: Text) -> tuple[str, list[Everyone]]:
        """Add a text; return its problem (or an empty text), and the allgathers that are complete with it."""
        with self._lock:
            if problem := self._problem(node, sent):
                return problem, []
            turn = self._turns.setdefault(sent.turn, {})
            if sent.rank in turn or sent.turn < self._next:
                return f"rank {sent.rank} sends a second text", []
            turn[sent.rank] = sent.text
            self._late.discard(sent.rank)
            return "", self._completed()

    def begin(self) -> None:
        """Note that the run begins: the next allgather ends it."""
        with self._lock:
            self._run_ends_with = self._next

    def lose(self, rank: int) -> list[Everyone]:
        """Wait no longer for a lost process; return the allgathers that are complete without it."""
        with self._lock:
            self._present.discard(rank)
            self._late.discard(rank)
            return self._completed()

    def join(self, node: int, sent: Text) -> tuple[str, Everyone | None]:
        """Let a replacement join; return its problem (or an empty text), and the answer to it, None before the run."""
        with self._lock:
            if problem := self._problem(node, sent):
                return problem, None
            if self._run_ends_with is None:
                return "", None
            if self._ends():
                return "", Everyone(OVER, ())
            self._present.add(sent.rank)
            self._late.add(sent.rank)
            return "", Everyone(self._next, ())

    def unneeded(self) -> list[int]:
        """Return the ranks of replacements that have joined, and that others wait for at the end of the run.

        A server that has not finished may just have begun to wait for its new standby.
        """
        with self._lock:
            finished = self._turns.get(self._next, {})
            late = [rank for rank in sorted(self._late) if self._other.get(rank) in (None, *finished)]
            return late if self._ends() else []

    def _ends(self) -> bool:
        """Return whether server 0 has finished the run: until then it may need a replacement.

        Others finish before it: workers do while the last model is evaluated.
        """
        if self._run_ends_with is None:
            return False
        last = self._turns.get(self._next, {})
        return self._next > self._run_ends_with or any(self._ids[rank] in self._last for rank in last)

    def _problem(self, node: int, sent: Text) -> str:
        if sent.launch != self._launch or not 0 <= sent.rank < len(self._ids):
            return f"node {node} is of another launch"
        if self._ids[sent.rank] != node:
            return f"node {node} claims rank {sent.rank}, which node {self._ids[sent.rank]} has"
        return ""

    def _completed(self) -> list[Everyone]:
        done = []
        while self._present <= self._turns.get(self._next, {}).keys():
            texts = self._turns.pop(self._next)
            done.append(Everyone(self._next, tuple(texts.get(rank, "") for rank in range(len(self._ids)))))
            self._next += 1
        return done
