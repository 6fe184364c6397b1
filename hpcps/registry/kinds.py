"""The kinds of components that an experiment consists of."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import cast

from hpcps.registry.config import Config


@dataclass(frozen=True)
class ComponentKind:
    """One kind of component.

    Attributes:
        name: the plural, which also names the group of entry points, `hpcps.<name>`.
        noun: the singular, for messages.
        tag: the field of the class that holds the component's name, a `Literal` with a default.
        base: the class that every component derives from, as `module:Class`.
        package: the module whose namespace has the built-in components.
        key: the key of the experiment file that selects a component; empty if there is none.
        shorthand: whether the file may give only the name instead of a table.
        default: the component of a table that names none; empty if a table must name one.
    """

    name: str
    noun: str
    tag: str
    base: str
    package: str
    key: str
    shorthand: bool = False
    default: str = ""

    def base_class(self) -> type[Config]:
        """Import and return the class that every component of this kind derives from."""
        module, _, name = self.base.partition(":")
        return cast(type[Config], getattr(import_module(module), name))

    def name_of(self, component: type[Config]) -> str:
        """Return the name of a component class, or an empty text if it declares none (as an abstract class does)."""
        field = component.model_fields.get(self.tag)
        return field.default if field is not None and isinstance(field.default, str) else ""


KINDS: dict[str, ComponentKind] = {
    kind.name: kind
    for kind in (
        ComponentKind("rules", "rule", "kind", "hpcps.rules.base:BaseRule", "hpcps.rules", "validation.rule"),
        ComponentKind(
            "preaggregators",
            "pre-aggregator",
            "kind",
            "hpcps.rules.preaggregation:PreAggregator",
            "hpcps.rules.preaggregation",
            "validation.rule.before",
        ),
        ComponentKind("attacks", "attack", "kind", "hpcps.attacks.base:BaseAttack", "hpcps.attacks", "attack"),
        ComponentKind(
            "policies", "policy", "kind", "hpcps.policies.local_steps:Policy", "hpcps.policies", "train.local_steps"
        ),
        ComponentKind(
            "optimizers",
            "server optimizer",
            "kind",
            "hpcps.optimizers.base:ServerOptimizer",
            "hpcps.optimizers",
            "server.optimizer",
            True,
        ),
        ComponentKind(
            "compressors",
            "compressor",
            "kind",
            "hpcps.compression.base:BaseCompressor",
            "hpcps.compression",
            "communication.compression",
            True,
        ),
        ComponentKind("datasets", "data set", "name", "hpcps.data.base:Data", "hpcps.data.sets", "data"),
        ComponentKind("splits", "split", "kind", "hpcps.data.splits:Split", "hpcps.data.splits", "data.split", True),
        ComponentKind("models", "model", "name", "hpcps.models.base:Model", "hpcps.models", "model"),
        ComponentKind(
            "launchers", "launcher", "name", "hpcps.launch.launchers.base:Launcher", "hpcps.launch.launchers", ""
        ),
        ComponentKind(
            "transports",
            "transport",
            "kind",
            "hpcps.spec.transport:Transport",
            "hpcps.transport",
            "transport",
            default="mpi",
        ),
    )
}
"""All kinds, by name."""
