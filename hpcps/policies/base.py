"""The base class of policies of local steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from hpcps.registry import Config


@dataclass(frozen=True)
class Standing:
    """What the state server knows of one role; its moments are on the state server's clock, in seconds.

    Attributes:
        begun: whether the role has begun the round.
        k: its local steps in the round so far.
        c: its seconds per local step; None until it has reported a step.
        te: when its report of its last step, or of the beginning of the round, arrived.
        ready: whether it was told to send its update.
    """

    begun: bool = False
    k: int = 0
    c: float | None = None
    te: float = 0.0
    ready: bool = False


class Policy(Config, ABC):
    """How many local steps each role takes in a synchronous round; a subclass adds `kind` and its own keys.

    A role takes the first step of a round without asking, so that it takes at least one.
    """

    kind: str
    most: int

    @property
    def waits(self) -> bool:
        """Whether a role takes the steps of an answer together, and then waits for the next answer.

        Otherwise it reports each step, and waits only if the last answer allows no further one.
        """
        return True

    @abstractmethod
    def further_steps(self, asker: int, standings: Sequence[Standing], now: float) -> int:
        """Return how many further steps a role takes; 0: it sends its update.

        The state server asks only while the role has taken fewer than `most` steps, and limits the answer to the rest.

        Args:
            asker: the index of the role in `standings`; its step has just ended, so its `c` is known.
            standings: all roles that the policy decides for.
            now: the moment of the query.
        """
