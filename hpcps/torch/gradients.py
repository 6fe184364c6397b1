"""The exchange of the gradients of a step, while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from itertools import count

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from hpcps.errors import RunError, SpecError
from hpcps.session.reduction import Reduction, is_whole, rule_of
from hpcps.torch.compression import Compression, NoneCompressor
from hpcps.torch.exchange import check_whole
from hpcps.torch.state import session, size
from hpcps.torch.together import Together

_steps = count()
_hooks: MutableMapping[Tensor, RemovableHandle] = WeakTensorKeyDictionary()


class _Bucket:
    """Gradients that are exchanged together, when the backward pass has computed all of them."""

    def __init__(self, parameters: Sequence[Tensor], together: Together) -> None:
        self.parameters, self._together = parameters, together
        self.left, self.begun = len(parameters), False

    def begin(self) -> None:
        """Begin the exchange, if it has not begun; the gradient of an unused parameter is zero."""
        if not self.begun:
            self.begun = True
            gradients = []
            for parameter in self.parameters:
                if (gradient := parameter.grad) is None:
                    gradient = torch.zeros_like(parameter)
                    if parameter.requires_grad:  # else the script has frozen it, and no step may change it
                        parameter.grad = gradient
                gradients.append(gradient)
            self._together.begin(gradients)

    def finish(self) -> None:
        """Wait for the results."""
        self.left, self.begun = len(self.parameters), False
        self._together.finish()


class Gradients:
    """The exchanges of the gradients of a step.

    Attributes:
        names: the names of the gradients, by parameter.
        synchronizes: whether gradients are exchanged.
        combined: whether they have been exchanged since the last backward pass, and no step has used them.
    """

    def __init__(
        self, names: dict[Tensor, str], reduction: Reduction, passes: int, compression: type[NoneCompressor]
    ) -> None:
        """Exchange the gradients of parameters from now on.

        Args:
            names: the names of the gradients, by parameter.
            reduction: how they are combined.
            passes: the backward passes of a step.
            compression: see `Compression`.

        Raises:
            SpecError: gradients cannot be combined in this way.
        """
        self.names, self._passes, self.synchronizes, self.combined = names, passes, True, False
        self._left = dict.fromkeys(names, passes)
        self._complete: dict[Tensor, tuple[Tensor, int]] = {}  # gradients and their versions
        if not names:
            raise SpecError("no parameter requires a gradient: unfreeze parameters before their exchange is set up")
        for parameter, name in names.items():
            check_whole(name, parameter)
        groups, name = list(_grouped(list(names))), ""
        if is_whole(reduction, rule_of(reduction, size())):
            if compression is not Compression.none:
                raise SpecError(
                    "Compression.fp16 is for the mean and rules that see coordinates or blocks, and this rule sees all "
                    'gradients at once: use compression="fp16"'
                )
            groups, name = [list(names)], f"gradients {next(_steps)}"
        self._buckets: dict[Tensor, _Bucket] = {}
        for group in groups:
            ends = dict.fromkeys((names[group[0]], names[group[-1]]))
            together = Together(group, name or " to ".join(ends), reduction, compression)
            self._buckets |= dict.fromkeys(group, _Bucket(group, together))
        for parameter in names:
            if parameter in _hooks:  # of an earlier optimizer
                _hooks[parameter].remove()
            _hooks[parameter] = parameter.register_post_accumulate_grad_hook(self.count)  # type: ignore[no-untyped-call]

    @property
    def begun(self) -> bool:
        """Whether gradients are being exchanged."""
        return any(bucket.begun for bucket in self._buckets.values())

    def count(self, parameter: Tensor) -> None:
        """Count a backward pass; begin the exchange of gradients after the last one of the step."""
        if self._left[parameter] == 0:
            raise RunError(
                f"{self.names[parameter]} has had {self._passes} backward passes since the last step: call step() or "
                "synchronize(), or raise backward_passes_per_step"
            )
        self._left[parameter] -= 1
        self.combined = False
        if self._left[parameter] == 0 and (gradient := parameter.grad) is not None:
            self._complete[parameter] = gradient, gradient._version
            bucket = self._buckets[parameter]
            bucket.left -= 1
            if bucket.left == 0:
                bucket.begin()

    def combine(self) -> None:
        """Exchange the gradients that a step uses, unless the script has synchronized them."""
        if self.synchronizes and not self.combined:
            self.synchronize()
        self.combined = False

    def synchronize(self) -> None:
        """Wait for all gradients; begin the exchange of those that no backward pass has reached.

        Raises:
            RunError: the script has changed a gradient since its backward pass.
        """
        complete, self._complete = self._complete, {}
        buckets = dict.fromkeys(self._buckets.values())
        self._left = dict.fromkeys(self.names, self._passes)
        for bucket in buckets:
            bucket.begin()
        for bucket in buckets:
            bucket.finish()
        # Writing the result has changed a gradient once.
        changed = [self.names[p] for p, (g, old) in complete.items() if p.grad is not g or g._version != old + 1]
        session().step()
        self.combined = True
        if changed:
            raise RunError(
                f"{len(changed)} of {len(self.names)} gradients, such as {changed[0]}, changed between backward() and "
                "step(), while they were exchanged, and the changes are lost: to clip or unscale gradients, call "
                "optimizer.synchronize() before, and then step() in `with optimizer.skip_synchronize():`"
            )


def _grouped(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Return parameters of one type and device together, up to the size of a partition.

    The order is that in which a backward pass computes most gradients.
    """
    most = session().partition
    groups: dict[object, list[Tensor]] = {}
    for parameter in reversed(parameters):
        group = groups.setdefault((parameter.dtype, parameter.device), [])
        if group and sum(each.nbytes for each in group) + parameter.nbytes > most:
            yield group
            group = groups[parameter.dtype, parameter.device] = []
        group.append(parameter)
    yield from filter(None, groups.values())
