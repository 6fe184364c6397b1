"""A model of your own; `own_data.toml` beside this file trains it."""

from functools import partial
from typing import Literal

from pydantic import Field

from hpcps.models import Model


class MyModel(Model):
    """One hidden layer with LayerNorm, for samples `[n]`, trained with a hinge loss."""

    name: Literal["my_model"] = "my_model"
    width: int = Field(32, ge=1, le=4096, description="Width of the hidden layer.")
    margin: float = Field(1.0, gt=0, description="Margin of the hinge loss.")

    def build(self, shape, classes):
        """Build a `torch.nn.Module` that takes `[b, *shape]` and returns `[b, classes]`."""
        from torch import nn
        from torch.nn.functional import multi_margin_loss

        network = nn.Sequential(nn.Linear(*shape, self.width), nn.LayerNorm(self.width), nn.ReLU())
        network.append(nn.Linear(self.width, classes))
        # The loss to train on; without this line it is the cross entropy.
        network.loss = partial(multi_margin_loss, margin=self.margin)
        return network
