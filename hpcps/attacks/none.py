"""No attack."""

from typing import Literal

from hpcps.attacks.base import BaseAttack


class NoAttack(BaseAttack):
    """Every worker is honest."""

    kind: Literal["none"] = "none"
