"""No attack."""

from typing import Literal

from hpcps.config import Config


class NoAttack(Config):
    """Every worker is honest."""

    kind: Literal["none"] = "none"
