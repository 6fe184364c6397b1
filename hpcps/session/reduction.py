"""How the tensors of all processes are combined: by an operation, or by the components that a table selects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from hpcps.errors import SpecError
from hpcps.registry.config import Config, component_in
from hpcps.rules import Average, Rule
from hpcps.rules.coordinate_wise import Trimming
from hpcps.session.elements import OPERATIONS

if TYPE_CHECKING:
    from hpcps.compression import Compressor

Reduction = str | Mapping[str, Any]
"""How the tensors of all processes are combined: one of `elements.OPERATIONS`, such as `sum` or `mean`; `ACCUMULATE`,
`BROADCAST` or `GATHER`; or the table of a rule. With simulated attackers, the table also has the `attack`, a table, and
the `seed` of their random numbers. With `compression`, the table of a compressor, what workers send, the results, or
both travel encoded."""
_OTHER = ("attack", "seed", "compression")
ACCUMULATE = "accumulate"
"""The reduction of asynchronous weights. In the first exchange all workers get the sum; after that, the aggregator adds
what a worker sends to its weights, and answers this worker at once with the newest weights."""

BROADCAST = "broadcast"
"""The reduction of a tensor that only one worker gives: the result is this tensor."""
GATHER = "gather"
"""The reduction of an allgather: all workers get the rows of all workers, of which each may have another number. A
tensor is declared with one row, and an exchange gives its bytes; see `gathering`."""
COPIES = (BROADCAST, GATHER)
"""The reductions without arithmetic: they take elements of any type."""


def rule_of(reduction: Reduction, workers: int) -> Rule | None:
    """Return the rule of a reduction; None if it has none.

    Raises:
        SpecError: there is no such rule, its keys are wrong, or a session cannot use it with so many workers.
    """
    if reduction in (*OPERATIONS, ACCUMULATE, *COPIES):
        return None
    from hpcps.spec.schema import Validation  # here, because its import takes long

    table = (
        reduction
        if isinstance(reduction, str)
        else {key: value for key, value in reduction.items() if key not in _OTHER}
    )
    rule = component_in(Validation, "rule", table)
    if not isinstance(rule, Rule):
        raise SpecError(f"rule {rule.kind} is for asynchronous training: a script exchanges its tensors synchronously")
    if needs := sorted(rule.requires & {"reference", "loss"}):
        raise SpecError(
            f"rule {rule.title} needs the {' and the '.join(needs)} of a validator with data of its own, and a script "
            "has none: use a rule without such needs, such as krum or trimmed_mean; `hpcps components rules` lists them"
        )
    if simulated(reduction):
        from hpcps.session.whole import attack_of

        attack_of(reduction["attack"], sent_with(reduction))
    if reason := rule.obstacle():
        raise SpecError(f"rule {rule.kind} {reason}")
    if reason := rule.contradiction() or rule.refusal(workers):
        raise SpecError(f"rule {rule.title}: {reason}")
    if isinstance(rule, Trimming) and rule.trims_all(workers):
        raise SpecError(
            f"rule {rule.title}: the result of {workers} processes would be zero: start at least 3, or use the rule "
            "median, or f = 0"
        )
    return rule


def compressor_of(table: object) -> Compressor | None:
    """Return the compressor of a table; None if it leaves tensors as they are.

    Raises:
        SpecError: there is no such compressor, its keys are wrong, or a session cannot use it.
    """
    # Here, because their imports take long.
    from hpcps.compression import Compressor
    from hpcps.spec.schema import Communication

    compressor = component_in(Communication, "compression", table)
    if not isinstance(compressor, Compressor):
        return None
    reason = compressor.obstacle() or compressor.obstacle_without_shapes()
    if compressor.memory == "nesterov":
        reason = 'has memory = "nesterov", which is for experiments: use "residual", "ef21" or "none"'
    elif compressor.memory == "ef21" and compressor.direction != "update":
        reason = f'has memory = "ef21" and direction = "{compressor.direction}": ef21 is for direction = "update"'
    if reason:
        raise SpecError(f"compression {compressor.kind} {reason}")
    return compressor


def sent_with(reduction: Mapping[str, Any]) -> Compressor | None:
    """Return the compressor with which workers send; None if they send tensors as they are."""
    compressor = compressor_of(reduction["compression"]) if "compression" in reduction else None
    return compressor if compressor is not None and compressor.encodes("update") else None


def simulated(reduction: Reduction) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a reduction simulates attackers."""
    return not isinstance(reduction, str) and "attack" in reduction


def is_whole(reduction: Reduction, rule: Rule | None) -> bool:
    """Return whether the gradients of a step must be combined at once, as its rule or its attack sees all of them."""
    return simulated(reduction) or (rule is not None and rule.scope == "vector")


def needs_all(reduction: Reduction, rule: Rule | None) -> bool:
    """Return whether a tensor is combined only if each worker takes part, so not while one has joined."""
    selects = rule is not None and not isinstance(rule, Average)
    return selects or simulated(reduction) or reduction in (ACCUMULATE, BROADCAST)


def compresses(reduction: Reduction) -> TypeGuard[Mapping[str, Any]]:
    """Return whether what workers send, or the results, may travel encoded."""
    return not isinstance(reduction, str) and "compression" in reduction


def table_of(rule: object, what: str = "rule") -> dict[str, Any]:
    """Return a rule or an attack, given by its name, its table or itself, as a table of JSON values.

    Raises:
        SpecError: it is none of these.
    """
    if isinstance(rule, str):
        return {"kind": rule}
    if isinstance(rule, Config):
        return rule.model_dump(mode="json", exclude_none=True)
    if isinstance(rule, Mapping):
        return {str(key): value for key, value in rule.items()}
    example = {"rule": "median", "attack": "negative", "compression": "onebit"}[what]
    raise SpecError(f"{what} must be the name, the table or an object of one, such as {example!r}, not {rule!r}")


def operation_of(average: bool) -> str:
    """Return the operation of an argument `average`.

    Raises:
        SpecError: it is the name of a tensor.
    """
    if isinstance(average, str):
        raise SpecError(f"average is {average!r}: give the name of a tensor as name={average!r}")
    return "mean" if average else "sum"


def reduction_of(
    operation: str, rule: object = None, attack: object = None, seed: int = 0, compression: object = None
) -> Reduction:
    """Return how tensors are combined: by a rule if there is one, else by an operation, such as `mean`.

    Raises:
        SpecError: the arguments contradict each other.
    """
    if rule is not None and operation != "mean":
        given = "average=False and op=Sum" if operation == "sum" else f"op={operation.capitalize()}"
        raise SpecError(f"a rule is in place of the mean: leave out {given}, or rule=")
    if attack is None and compression is None:
        return operation if rule is None else table_of(rule)
    if operation != "mean":
        raise SpecError(
            f"{'a compressor' if attack is None else 'attack='} is for the mean or a rule: use average=True"
        )
    return {
        **table_of(rule or "mean"),
        **({} if attack is None else {"attack": table_of(attack, "attack"), "seed": seed}),
        **({} if compression is None else {"compression": table_of(compression, "compression")}),
    }
