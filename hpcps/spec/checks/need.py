"""A need of a key or component, and the keys that many needs name."""

from __future__ import annotations

from dataclasses import dataclass

from hpcps.spec.locate import Path

KIND, RULE, ATTACK = ("transport", "kind"), ("validation", "rule"), ("attack", "kind")
QUORUM, OPTIMIZER = ("train", "quorum"), ("server", "optimizer")
STEPS, GLOBAL_LR, BATCHNORM = ("train", "local_steps"), ("train", "global_lr"), ("validation", "batchnorm")


@dataclass(frozen=True)
class Need:
    """Something that a key needs.

    Attributes:
        path: the key.
        what: what it needs: a word of `offers`.
        message: why, and what to do where the run does not offer it.
        involves: further keys that contribute to the need.
    """

    path: Path
    what: str
    message: str
    involves: tuple[Path, ...] = ()
