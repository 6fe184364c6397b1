"""The exchange of the gradients of a step, while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from itertools import count
from traceback import walk_stack
from weakref import ref

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from hpcps.errors import RunError, SpecError
from hpcps.session.current import check_survives, session, size
from hpcps.session.reduction import Reduction, is_whole, rule_of
from hpcps.torch.compression import Compression, NoneCompressor
from hpcps.torch.exchange import begin, check_whole
from hpcps.torch.gradient_buckets import GradientBucket, SparseGradient
from hpcps.torch.samples import State, is_unchanged, state_of
from hpcps.torch.together import Together

_steps = count()
_SPARSE, _DENSE = 1, 2
"""How a process has a gradient: a dense one anywhere decides."""
_all: list[ref[Gradients]] = []
_hooks: MutableMapping[Tensor, RemovableHandle] = WeakTensorKeyDictionary()


class Gradients:
    """The exchanges of the gradients of a step.

    A parameter of an embedding may have a sparse gradient, which no process knows before its first backward pass. So
    processes agree in their first step on the gradients that are sparse.

    Attributes:
        names: the names of the gradients, by parameter.
        synchronizes: whether gradients are exchanged.
        whole: whether they are combined at once, when all have come.
        combined: whether they have been exchanged since the last backward pass, and no step has used them.
    """

    def __init__(
        self,
        names: dict[Tensor, str],
        reduction: Reduction,
        passes: int,
        compression: type[NoneCompressor],
        factor: float = 1.0,
        sparse_as_dense: bool = False,
    ) -> None:
        """Exchange the gradients of parameters from now on.

        Args:
            names: the names of the gradients, by parameter.
            reduction: how they are combined.
            passes: the backward passes of a step.
            compression: see `Compression`.
            factor: what gradients are divided by before, and results are multiplied by.
            sparse_as_dense: whether sparse gradients become dense, as for rules and compressors.

        Raises:
            SpecError: gradients cannot be combined in this way.
        """
        remedy = "make it before elastic.run, because it goes on with the same one after a loss"
        check_survives("DistributedOptimizer in the function", remedy, repeated=True)
        self.names, self._passes, self.synchronizes, self.combined = names, passes, True, False
        self._left = dict.fromkeys(names, passes)
        self._partial: dict[Tensor, Tensor] = {}  # gradients that have had some of the passes of a step
        if not names:
            raise SpecError("no parameter requires a gradient: unfreeze parameters before their exchange is set up")
        for parameter, name in names.items():
            check_whole(name, parameter)
        self._prioritized = False
        self._priorities = dict.fromkeys(names, 0)
        groups, name = list(_grouped(list(names))), ""
        self.whole = is_whole(reduction, rule_of(reduction, size()))
        if self.whole:
            if compression is not Compression.none:
                raise SpecError(
                    "Compression.fp16 is for the mean and rules that see coordinates or blocks, and this rule sees all "
                    'gradients at once: use compression="fp16"'
                )
            groups, name = [list(names)], f"gradients {next(_steps)}"
        self._reduction, self._compression, self._factor = reduction, compression, factor
        self._groups, self._name = groups, name
        self._layouts = f"layouts of {next(iter(names.values()))}"
        self._dense = sparse_as_dense or reduction not in ("mean", "sum")
        self._declare()
        _all.append(ref(self))
        for parameter in names:
            if parameter in _hooks:  # of an earlier optimizer
                _hooks[parameter].remove()
            _hooks[parameter] = parameter.register_post_accumulate_grad_hook(self.count)  # type: ignore[no-untyped-call]

    def _declare(self) -> None:
        """Begin in a session, without a gradient."""
        self._buckets: dict[Tensor, GradientBucket | SparseGradient] = {}
        for group in self._groups:
            self._put_together(group, self._name)
        self._agreed = self._dense
        self._held: dict[Tensor, State] = {}  # sparse gradients that are complete before the processes agree
        session().expect(_unfinished(ref(self)))

    def check_workers(self, workers: int) -> None:
        """Check that so many workers can combine these gradients.

        Raises:
            SpecError: the rule needs more, or fewer.
        """
        rule_of(self._reduction, workers)

    def renew(self) -> None:
        """Begin anew in another session: what had begun in the last one, and its gradients, are void."""
        for parameter in self.names:
            parameter.grad = None
        self.forget()
        self._declare()

    def _put_together(self, group: Sequence[Tensor], name: str = "", note: str = "") -> GradientBucket:
        """Exchange the gradients of some parameters together, by a name or by those of the first and the last."""
        ends = dict.fromkeys((self.names[group[0]], self.names[group[-1]]))
        together = Together(group, name or f"{' to '.join(ends)}{note}", self._reduction, self._compression)
        bucket = GradientBucket(group, together, self._factor)
        self._buckets |= dict.fromkeys(group, bucket)
        return bucket

    def prioritize(self) -> None:
        """Send the gradients of the first layers first, for steps whose layers wait for their own gradients only.

        A step that waits for all gradients gains nothing by it, and loses the order in which they are computed.
        """
        check_survives("CrossBarrier", "use DistributedOptimizer without it", repeated=False)
        self._prioritized = True
        self._priorities = {parameter: -place for place, parameter in enumerate(self.names)}
        for bucket in self._buckets.values():
            bucket.priority = self._priority_of(bucket)

    def _priority_of(self, bucket: GradientBucket | SparseGradient) -> int:
        return max(self._priorities[parameter] for parameter in bucket.parameters)

    @property
    def begun(self) -> bool:
        """Whether gradients are being exchanged, or have had all backward passes of a step, which is not taken."""
        waiting = (bucket for bucket in self._buckets.values() if not bucket.taken)
        return bool(self._held) or any(bucket.begun or bucket.complete for bucket in waiting)

    def bucket_of(self, parameter: Tensor) -> GradientBucket | SparseGradient:
        """Return the gradients that are exchanged with that of a parameter."""
        return self._buckets[parameter]

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes of a step.

        Raises:
            RunError: a step has begun.
        """
        if self.begun or self._partial:
            raise RunError(
                "set_backward_passes_per_step() between a backward pass and its step: call it after step() or "
                "zero_grad()"
            )
        self._passes = passes
        self.forget()

    def forget(self) -> None:
        """Forget the backward passes of a step that have begun, because the script clears the gradients."""
        self.combined = False
        self._left = dict.fromkeys(self.names, self._passes)
        self._partial = {}

    def count(self, parameter: Tensor) -> None:
        """Count a backward pass; begin the exchange of gradients after the last one of the step.

        Raises:
            RunError: there is one too many; the session ends, because the gradients of this process are wrong.
        """
        gradient, left = parameter.grad, self._left[parameter]
        if gradient is None:
            return
        if gradient.layout is not torch.strided:
            gradient = self._sparse(parameter, gradient)
        if self._buckets[parameter].taken:
            raise self.failed(
                f"{self.names[parameter]} has had a backward pass before the last step has changed the parameter, "
                "because the forward pass has read it without calling its module, where CrossBarrier waits: call "
                "optimizer.synchronize() before the forward pass"
            )
        if left == 0:
            raise self.failed(
                f"{self.names[parameter]} has had a backward pass too many since the last step: {self._remedies()}"
            )
        if left < self._passes and self._partial.get(parameter) is not gradient:
            left = self._passes  # the script has cleared the gradient, as model.zero_grad() does
        self._left[parameter] = left - 1
        self.combined = False
        if left > 1:
            self._partial[parameter] = gradient
        else:
            self._partial.pop(parameter, None)
            if gradient.layout is torch.strided or self._agreed:
                self._buckets[parameter].put(parameter, gradient)
            else:
                self._held[parameter] = state_of(gradient)

    def _sparse(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Return a sparse gradient, or a dense one in its place: only the rows of an embedding are exchanged."""
        of_rows = gradient.layout is torch.sparse_coo and gradient.sparse_dim() == 1
        if of_rows and (not self._agreed or isinstance(self._buckets[parameter], SparseGradient)):
            return gradient
        parameter.grad = gradient.to_dense()
        return parameter.grad

    @torch.no_grad()
    def _agree(self) -> None:
        """Agree with the other processes which gradients are sparse: those that some have so, and none has dense.

        Others become dense here, too. A gradient that is sparse in a later step for the first time does, too.
        """
        if self._layouts in session().member.missed:
            raise self.failed(
                "the first step of this process comes after join(), and the others have agreed in their first step "
                "which gradients are sparse: take a first step before join(), or give DistributedOptimizer "
                "sparse_as_dense=True"
            )
        self._agreed = True
        layouts = torch.tensor([_layout_of(parameter.grad) for parameter in self.names], dtype=torch.uint8)
        begin(layouts, layouts, self._layouts, "max").finish()
        found = {p for p, layout in zip(self.names, layouts.tolist(), strict=True) if layout == _SPARSE}
        for bucket in dict.fromkeys(self._buckets.values()):
            if rows := [parameter for parameter in bucket.parameters if parameter in found]:
                for parameter in rows:
                    name = self.names[parameter]
                    new = SparseGradient(parameter, name, self._reduction, self._compression, self._factor)
                    self._replace(bucket, new)
                if dense := [parameter for parameter in bucket.parameters if parameter not in found]:
                    self._replace(bucket, self._put_together(dense, note=", those that are dense"))
        for parameter, state in self._held.items():
            gradient = parameter.grad
            if gradient is not None and parameter not in found and is_unchanged(gradient, state):
                parameter.grad = gradient.to_dense()
                self._held[parameter] = state_of(parameter.grad)
            self._buckets[parameter].complete[parameter] = self._held[parameter]
        self._held = {}

    def _replace(self, old: GradientBucket | SparseGradient, new: GradientBucket | SparseGradient) -> None:
        """Exchange gradients in another bucket from now on."""
        new.priority = self._priority_of(new)
        for parameter in new.parameters:
            self._buckets[parameter] = new
            if parameter in old.complete:
                new.complete[parameter] = old.complete[parameter]

    def _remedies(self) -> str:
        """Return what scripts do whose parameters have more backward passes than steps use."""
        remedies = [f"call step() or synchronize() after {_counted(self._passes)}, or raise backward_passes_per_step"]
        if self._passes > 1:
            remedies.append("clear gradients with optimizer.zero_grad(), which also forgets the passes before it")
        remedies.append(
            "if the pass is for another optimizer, as that of a generator through its discriminator, call "
            "requires_grad_(False) for these parameters before it, and requires_grad_(True) after it"
        )
        if any(frame.f_globals.get("__name__") == "torch.utils.checkpoint" for frame, _ in walk_stack(None)):
            remedies.append("if reentrant checkpoints use a module twice, give checkpoint() use_reentrant=False")
        return "; ".join(remedies)

    def failed(self, what: str) -> RunError:
        """End the session, as this process would go on with other parameters than the others; return the error."""
        error = RunError(what)
        session().fail(error)
        return error

    def combine(self) -> None:
        """Exchange the gradients that a step uses, unless the script has synchronized them."""
        if self.synchronizes and not self.combined:
            self.synchronize()
        self.combined = False

    def synchronize(self) -> None:
        """Wait for all gradients; begin the exchange of those that no backward pass has reached.

        Raises:
            RunError: the script has changed a gradient since its backward pass; the session ends.
        """
        self.finish(self.begin())
        self.combined = True
        session().step()

    def begin(self) -> list[GradientBucket | SparseGradient]:
        """Begin the exchange of all gradients of a step that is not under way; return those that `finish` takes."""
        if not self._agreed:
            self._agree()
        self.forget()
        buckets = [*dict.fromkeys(self._buckets.values())]
        for bucket in buckets:
            bucket.begin()
        return buckets

    def finish(self, buckets: Iterable[GradientBucket | SparseGradient]) -> None:
        """Wait for gradients.

        Raises:
            RunError: the script has changed one since its backward pass; the session ends.
        """
        changed = [self.names[parameter] for bucket in buckets for parameter in bucket.finish()]
        if changed:
            instead = "call optimizer.synchronize() before, and then step() in `with optimizer.skip_synchronize():`"
            if self._prioritized:  # for CrossBarrier
                instead = "use DistributedOptimizer without CrossBarrier"
            raise self.failed(
                f"{len(changed)} of {len(self.names)} gradients, such as {changed[0]}, changed between backward() and "
                f"step(), while they were exchanged, and the changes are lost: to clip or unscale gradients, {instead}"
            )


def renew_all() -> None:
    """Begin all exchanges of gradients anew in another session, in the order in which the script has begun them."""
    _all[:] = [known for known in _all if known() is not None]
    for known in _all:
        if (gradients := known()) is not None:
            gradients.renew()


def check_rules(workers: int) -> None:
    """Check that the gradients of all optimizers can be combined by another number of workers.

    Raises:
        SpecError: a rule needs more, or fewer.
    """
    for known in _all:
        if (gradients := known()) is not None:
            gradients.check_workers(workers)


def _layout_of(gradient: Tensor | None) -> int:
    """Return 0 without a gradient, else `_SPARSE` or `_DENSE`."""
    return 0 if gradient is None else _DENSE if gradient.layout is torch.strided else _SPARSE


def _counted(passes: int) -> str:
    return "each backward pass" if passes == 1 else f"each {passes} backward passes"


def _unfinished(known: ref[Gradients]) -> Callable[[], str]:
    """Return what says, at the end of a script, whether it has begun a step and not taken it."""

    def unfinished() -> str:
        gradients = known()
        if gradients is None or not gradients.begun:
            return ""
        name = next(iter(gradients.names.values()))
        return (
            "the script ends, or calls join(), after a backward pass without its step: of "
            f"{len(gradients.names)} gradients, such as {name}, some are exchanged, and no step has used them: call "
            "step() or optimizer.synchronize()"
        )

    return unfinished


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
