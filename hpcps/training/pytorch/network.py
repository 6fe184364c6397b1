"""Builds the network of a model and tries it on a small batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hpcps.data.base import Facts
from hpcps.models import Model
from hpcps.registry.failures import errors_of, fault

TRIED = 2
"""Number of samples in the batch."""


def build_network(model: Model, facts: Facts, device: torch.device) -> nn.Module:
    """Build the network of a model on a device, and check that it can be trained.

    Raises:
        SpecError: it cannot be built, has no parameters or some that are not float32, does not take the samples,
            does not return `[b, classes]`, or its own loss is not usable.
    """
    with errors_of(model, f"its build() failed for samples {list(facts.shape)}"):
        network: Any = model.build(facts.shape, facts.classes)
    if not isinstance(network, nn.Module):
        raise fault(model, f"its build() returned a {type(network).__name__}: it must return a torch.nn.Module")
    network.to(device)
    types = {name: str(parameter.dtype).removeprefix("torch.") for name, parameter in network.named_parameters()}
    if other := [f"{name} ({dtype})" for name, dtype in types.items() if dtype != "float32"]:
        more = f" and {len(other) - 3} more" if len(other) > 3 else ""
        raise fault(model, f"parameters that are not float32: {', '.join(other[:3])}{more}; make all of them float32")
    if not types:
        raise fault(model, "its network has no parameters: there is nothing to train")
    network.eval()  # so that the statistics do not change
    samples = torch.zeros(TRIED, *facts.shape, device=device)
    with errors_of(model, f"its network does not take samples {list(samples.shape)}"):
        outputs = network(samples)
    expected = [TRIED * facts.targets, facts.classes]
    if not isinstance(outputs, Tensor) or list(outputs.shape) != expected:
        raise fault(
            model,
            f"its network returns {_described(outputs)} for samples {list(samples.shape)}: the output must be "
            f"[b, classes], here {expected}",
        )
    if (own := own_loss(network)) is not None:
        with errors_of(model, "its loss(outputs, labels) failed"):
            loss = own(outputs, torch.zeros(TRIED, dtype=torch.int64, device=device))
        if not isinstance(loss, Tensor) or loss.shape != () or not loss.requires_grad:
            raise fault(
                model,
                f"its loss(outputs, labels) returned {_described(loss)}: it must be the mean loss of the batch, a "
                "tensor without dimensions that has a gradient",
            )
    return network


def own_loss(network: nn.Module) -> Any:
    """Return the training loss `loss(outputs, labels)` that a network defines; None for the cross entropy."""
    return getattr(network, "loss", None)


def _described(value: object) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
