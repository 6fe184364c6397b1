"""An attack that poisons the memory of a compressor once, for `audit.toml`."""

from typing import ClassVar, Literal

from pydantic import Field

from hpcps.attacks import Attack


class FalseResidual(Attack):
    """Replaces the update u, with the residual, by -scale u once; the residual keeps what is not sent of it.

    So the worker sends the rest in later rounds, in which it does what an honest worker does.
    """

    kind: Literal["false_residual"] = "false_residual"
    remains: ClassVar[bool] = True
    scale: float = Field(20.0, gt=0, le=1e6, description="Factor on the update, which is negated.")

    def corrupt(self, block, context):
        """See `Attack.corrupt`."""
        block *= -self.scale
