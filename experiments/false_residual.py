"""An attack that poisons the memory of a compressor, for `audit.toml`."""

from typing import ClassVar, Literal

from pydantic import Field

from hpcps.attacks import Attack


class FalseResidual(Attack):
    """Replaces u, the sum of the update and the residual, by -scale u; the residual keeps what is not sent of it.

    So the worker sends the rest in later rounds, in which it does what an honest worker does: with `every` it attacks
    in few rounds only.
    """

    kind: Literal["false_residual"] = "false_residual"
    remains: ClassVar[bool] = True
    scale: float = Field(20.0, gt=0, le=1e6, description="Factor on the update, which is negated.")

    def corrupt(self, block, context):
        """See `Attack.corrupt`."""
        block *= -self.scale
