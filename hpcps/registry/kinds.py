"""The kinds of components that an experiment consists of, and whether a class is a usable one."""

from __future__ import annotations

import re
from collections.abc import Collection, Set
from dataclasses import dataclass
from importlib import import_module
from inspect import isabstract
from traceback import walk_tb
from typing import Literal, cast, get_args, get_origin

from pydantic import PydanticUserError

from hpcps.errors import text_of
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
            True,
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
        ComponentKind("callbacks", "callback", "kind", "hpcps.callbacks:Callback", "hpcps.callbacks", "callbacks"),
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


def faults(kind: ComponentKind, component: type[Config]) -> list[str]:
    """Return the reasons why a class is not a usable component of this kind; none if it is one."""
    found = []
    if isabstract(component):
        methods = ", ".join(sorted(component.__abstractmethods__))
        found.append(f"it does not define {methods}")
    field = component.model_fields.get(kind.tag)
    if field is None or get_origin(field.annotation) is not Literal or not isinstance(field.default, str):
        name = component.__name__.lower()
        found.append(f'it does not declare its name: add the line `{kind.tag}: Literal["{name}"] = "{name}"`')
    elif field.default not in (names := get_args(field.annotation)):
        name = names[0]
        found.append(
            f'its {kind.tag} is Literal["{name}"], and the default is "{field.default}": the default must be the name: '
            f'`{kind.tag}: Literal["{name}"] = "{name}"`'
        )
    if not (component.__dict__.get("__doc__") or "").strip():
        found.append("it has no docstring; the docstring becomes its page in the reference")
    own = set(component.model_fields) - set(kind.base_class().model_fields) - {kind.tag}
    if own and not kind.key:
        found.append(
            f"it has keys ({', '.join(sorted(own))}), but no table of the experiment file sets them: use ClassVar"
        )
    for name in sorted(own):
        key = component.model_fields[name]
        if not key.description:
            found.append(f'its key {name} has no description: `{name}: … = Field(…, description="…")`')
        values = get_args(key.annotation) if get_origin(key.annotation) is Literal else ()
        if values and not key.is_required() and key.get_default(call_default_factory=True) not in values:
            found.append(f"the default of its key {name} is {key.default!r}: it must be one of {_listed(values)}")
    return found + component.faults()


def failure_of(error: BaseException) -> str:
    """Describe an exception of code that defines components; it replaces the messages of pydantic."""
    if not isinstance(error, PydanticUserError):
        return text_of(error)
    message = error.message.partition("\n")[0]
    if error.code == "model-field-missing-annotation" and (found := re.search(r"[`'](\w+)", message)):
        name = found[1]
        for base in (kind.base_class() for kind in KINDS.values()):
            if isinstance(getattr(base, name, None), property):
                how = f"`@property` and `def {name}(self):`"
                return f"{name} is a property of {base.__name__}: define it as one, with {how}"
        return (
            f'{name} has no type: a key needs one, as in `{name}: float = Field(…, description="…")`, and another '
            f"attribute of the class needs `{name}: ClassVar[…] = …`"
        )
    if error.code == "schema-for-unknown-type" and (found := re.search(r"(\w+)'?>", message)):
        return f"no key can have the type {found[1]}: use numbers, texts, lists or tables"
    return f"not a usable class: {message}"


def line_in(file: str | None, error: BaseException) -> int | None:
    """Return the last line of a file that was executed when an exception was raised; None if it was not executed."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return lines[-1] if lines else None


def not_among(component: type[Config], attribute: str, known: Collection[str]) -> list[str]:
    """Return the mistakes in a set of names that a class declares; none if all names are known."""
    declared, example = getattr(component, attribute, None), f'`{attribute} = frozenset({{"{sorted(known)[0]}"}})`'
    if not isinstance(declared, Set):
        return [f"its {attribute} must be a set, such as {example}"]
    unknown = sorted(repr(name) for name in declared if name not in known)
    return [f"its {attribute} contains {', '.join(unknown)}: it may only contain {_listed(known)}"] if unknown else []


def not_one_of(component: type[Config], attribute: str, known: Collection[str]) -> list[str]:
    """Return the mistake in a name that a class declares; none if the name is known."""
    declared = getattr(component, attribute, None)
    if isinstance(declared, str) and declared in known:
        return []
    return [f"its {attribute} is {declared!r}: it must be one of {_listed(known)}"]


def _listed(names: Collection[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
