"""Checks whether a class is a usable component."""

from __future__ import annotations

import re
from collections.abc import Collection, Set
from inspect import isabstract
from traceback import walk_tb
from typing import Literal, get_origin

from pydantic import PydanticUserError

from hpcps.registry.config import Config
from hpcps.registry.kinds import KINDS, ComponentKind


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
    if not (component.__dict__.get("__doc__") or "").strip():
        found.append("it has no docstring; the docstring becomes its page in the reference")
    own = set(component.model_fields) - set(kind.base_class().model_fields) - {kind.tag}
    if own and not kind.key:
        found.append(
            f"it has keys ({', '.join(sorted(own))}), but no table of the experiment file sets them: use ClassVar"
        )
    for name in sorted(own):
        if not component.model_fields[name].description:
            found.append(f'its key {name} has no description: `{name}: … = Field(…, description="…")`')
    return found + component.faults()


def failure_of(error: BaseException) -> str:
    """Describe an exception of code that defines components; pydantic's are for those who know pydantic."""
    if not isinstance(error, PydanticUserError):
        return ": ".join(filter(None, (type(error).__name__, str(error))))
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
