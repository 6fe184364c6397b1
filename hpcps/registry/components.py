"""The available components: built in, from installed packages, and from the plugin files of an experiment."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from inspect import isabstract
from typing import Any, cast

from pydantic_core import to_jsonable_python

from hpcps.errors import SpecError, UnknownComponentError
from hpcps.registry.config import Config
from hpcps.registry.kinds import KINDS, ComponentKind, failure_of, faults
from hpcps.registry.similarity import nearest


@dataclass(frozen=True)
class Origin:
    """Where a component comes from.

    Attributes:
        words: a text for messages, such as `built in` or `plugin ./my_rule.py`.
        identity: the part that enters the id of a run that uses the component; empty for a built-in component.
    """

    words: str
    identity: str = ""


BUILT_IN = Origin("built in")


@dataclass(frozen=True)
class Entry:
    """One component and its name; a package's component is imported at its first use.

    Attributes:
        kind: its kind.
        name: the name that the experiment file uses.
        origin: where it comes from.
        load: imports and returns its class.
    """

    kind: ComponentKind
    name: str
    origin: Origin
    load: Callable[[], type[Config]] = field(repr=False)

    @cached_property
    def component(self) -> type[Config]:
        """The class.

        Raises:
            SpecError: it cannot be imported, or it is not a component of this kind.
        """
        return self.load()

    @cached_property
    def described(self) -> dict[str, object]:
        """What records say of the component, as JSON values; also the defaults of one that is not built in, because
        who reads the records does not load it.
        """
        said = {"name": self.name, "origin": self.origin.words, **self.component.declarations()}
        return said | ({"defaults": _defaults(self.component)} if self.origin.identity else {})


def _defaults(component: type[Config]) -> dict[str, object]:
    fields = {name: field for name, field in component.model_fields.items() if not field.is_required()}
    values = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    return {name: to_jsonable_python(value) for name, value in values.items()}


class Components(Mapping[str, Any]):
    """The components of one kind by name, such as `registry.rules`: `registry.rules["krum"](f=2)`."""

    def __init__(self, kind: ComponentKind, entries: Sequence[Entry]) -> None:
        self.kind = kind
        self._entries = {entry.name: entry for entry in entries}

    def __getitem__(self, name: str) -> Any:
        return self.entry(name).component

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def entry(self, name: str) -> Entry:
        """Return the entry of a component without importing it.

        Raises:
            UnknownComponentError: there is none; the message says which name is similar, and lists all names.
        """
        if name not in self._entries:
            guess = nearest(name, self._entries) if isinstance(name, str) else None
            hint = f": did you mean {guess!r}?" if guess else "."
            names = ", ".join(self._entries)
            raise UnknownComponentError(f"unknown {self.kind.noun} {name!r}{hint} There are: {names}")
        return self._entries[name]

    @cached_property
    def usual(self) -> Any:
        """The component of an empty table, of a kind that has one; all points of a sweep share it."""
        return self[self.kind.default]()

    def __repr__(self) -> str:
        return f"<{self.kind.name}: {', '.join(self._entries)}>"

    def usable(self) -> dict[str, Any]:
        """Return the classes by name, without those of installed packages that cannot be imported."""
        found = {}
        for name, entry in self._entries.items():
            try:
                found[name] = entry.component
            except SpecError:
                continue  # a file that names it gets the error
        return found


@dataclass(frozen=True)
class Plugin:
    """A plugin file that was executed.

    Attributes:
        file: its name.
        text: its content.
        entries: the components that it defines.
    """

    file: str
    text: str
    entries: tuple[Entry, ...]

    @property
    def sha256(self) -> str:
        """The SHA-256 of the text."""
        return sha256(self.text)

    def described(self) -> dict[str, str]:
        """Return the plugin as the plan and the folder of a run describe it: `file`, `sha256` and `text`."""
        return {"file": self.file, "sha256": self.sha256, "text": self.text}


def sha256(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


class Registry:
    """All components that an experiment file may use."""

    def __init__(self, plugins: Sequence[Plugin] = ()) -> None:
        """Take the plugin files of an experiment; their names must not clash with others (see `plugins.clashes`)."""
        self.plugins = tuple(plugins)
        self._kinds: dict[str, Components] = {}

    def of(self, kind: str) -> Components:
        """Return the components of a kind: the built-in ones, those of packages, those of plugins."""
        if kind not in self._kinds:
            known = KINDS[kind]
            mine = [entry for plugin in self.plugins for entry in plugin.entries if entry.kind is known]
            self._kinds[kind] = Components(known, [*_without_plugins(known), *mine])
        return self._kinds[kind]

    def entry_of(self, component: Config) -> Entry | None:
        """Return what is known of the class of a component; None if it is not registered."""
        for kind in KINDS.values():
            if isinstance(component, kind.base_class()):
                name, components = kind.name_of(type(component)), self.of(kind.name)
                return components.entry(name) if name in components else None
        return None


def _built_in(kind: ComponentKind) -> list[Entry]:
    base = kind.base_class()
    found = {
        kind.name_of(value): value
        for value in vars(import_module(kind.package)).values()
        if isinstance(value, type) and issubclass(value, base) and not isabstract(value) and kind.name_of(value)
    }
    return [Entry(kind, name, BUILT_IN, partial(itself, found[name])) for name in sorted(found, key=_natural)]


def itself(component: type[Config]) -> type[Config]:
    """Return the class of a component that is imported already."""
    return component


def _natural(name: str) -> list[object]:
    """Sort names as people do: numbers in them by value, so that `resnet20` comes before `resnet110`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


@cache
def _all_points() -> Any:  # Python 3.11 has another type for them than later versions
    """Return the entry points of all installed packages; to find them, a file of every package is read."""
    return entry_points()


def installed_points(kind: str) -> EntryPoints:
    """Return the entry points for components of a kind, as they are at the first call of this process."""
    return cast(EntryPoints, _all_points().select(group=f"hpcps.{kind}"))


@cache
def _without_plugins(kind: ComponentKind) -> list[Entry]:
    """Return the built-in components and those of installed packages, which cannot replace a built-in one."""
    found = {entry.name: entry for entry in _built_in(kind)}
    for point in installed_points(kind.name):
        if point.name not in found:
            package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
            origin = Origin(f"package {package}", package)
            found[point.name] = Entry(kind, point.name, origin, partial(_import, kind, point))
    return list(found.values())


def _import(kind: ComponentKind, point: EntryPoint) -> type[Config]:
    where = f"the entry point {point.name} = {point.value} of the package {point.dist.name if point.dist else '?'}"
    try:
        value = point.load()
    except Exception as error:
        raise SpecError(f"{where} cannot be imported: {failure_of(error)}") from error
    if not isinstance(value, type) or not issubclass(value, kind.base_class()):
        raise SpecError(f"{where} is not a class that derives from {kind.base.replace(':', '.')}")
    problems = faults(kind, value)
    if kind.name_of(value) != point.name:
        problems.append(f"its {kind.tag} is {kind.name_of(value)!r}, which must equal the name of the entry point")
    if problems:
        raise SpecError(f"{where} is not a usable {kind.noun}: {'; '.join(problems)}")
    return value


_INSTALLED = Registry()
_session = _INSTALLED
"""What is active without an experiment. It is no context variable: a notebook may run each cell in another context."""
_active: ContextVar[Registry | None] = ContextVar("registry", default=None)


def active() -> Registry:
    """Return the registry of the current experiment; without an experiment, that of the session (see `extend`)."""
    return _active.get() or _session


def installed() -> Registry:
    """Return the registry of the built-in and installed components, without plugins."""
    return _INSTALLED


def extend(plugins: Sequence[Plugin]) -> None:
    """Add plugins to the registry that is active outside of experiments; one with the same file name is replaced."""
    global _session
    files = {plugin.file: plugin for plugin in (*_session.plugins, *plugins)}
    _session = Registry([*files.values()])


@contextmanager
def using(registry: Registry) -> Iterator[None]:
    """Make this the registry that `active` returns within a block."""
    token = _active.set(registry)
    try:
        yield
    finally:
        _active.reset(token)


def activate(registry: Registry) -> None:
    """Make this the registry that `active` returns from now on."""
    _active.set(registry)
