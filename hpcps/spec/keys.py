"""The keys that an experiment file may have, read from the schema: for messages, the reference and editors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from hpcps.spec.schema import Run

_KEPT = (
    "type", "enum", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "pattern", "minItems", "maxItems",
)  # fmt: skip


@dataclass(frozen=True)
class Key:
    """One key of a table.

    Attributes:
        description: what it means, with its unit.
        required: whether a run must say it.
        default: what it is otherwise, as in JSON; None where it follows from other keys or is not set at all.
        value: the JSON Schema of a plain value; empty for a table.
        tables: the tables it may hold: none, one, or one for each `kind`.
    """

    description: str
    required: bool
    default: Any
    value: dict[str, Any]
    tables: tuple[Table, ...]

    @property
    def tagged(self) -> bool:
        """Whether `kind` decides which keys the table takes."""
        return bool(self.tables) and self.tables[0].kind != ""

    def table(self, kind: str) -> Table | None:
        """Return the table of this kind."""
        return next((table for table in self.tables if table.kind == kind), None)


@dataclass(frozen=True)
class Table:
    """The keys of one table; `kind` is empty unless the table is one of several kinds."""

    kind: str
    description: str
    keys: dict[str, Key]


@cache
def root() -> Table:
    """Return the top level of the experiment file, without `[[sweep]]`."""
    schema = Run.model_json_schema()
    return _table(schema, schema.get("$defs", {}), "")


def dotted_keys(table: Table | None = None, prefix: str = "") -> Iterator[tuple[str, Key]]:
    """Yield every key below a table with its dotted path; a key that several kinds have comes once for each."""
    for name, key in (table or root()).keys.items():
        yield prefix + name, key
        for inner in key.tables:
            yield from dotted_keys(inner, f"{prefix}{name}.")


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most like this one; for keys also one that ends in it or in something like it.

    Of several that are equally like it, the first: names are listed with the likelier before the others.
    """
    valid = list(valid)
    whole = _most_like(name, valid, 0.6)
    if whole is not None:
        return whole
    last = {choice.rpartition(".")[2]: choice for choice in reversed(valid)}
    close = _most_like(name.rpartition(".")[2], reversed(last), 0.75)
    return None if close is None else last[close]


def _most_like(name: str, choices: Iterable[str], enough: float) -> str | None:
    # difflib.get_close_matches would take the last in the alphabet of those that are equally like it.
    matcher = difflib.SequenceMatcher(b=name)
    best, found = enough, None
    for choice in choices:
        matcher.set_seq1(choice)
        ratio = matcher.ratio()
        if ratio > best or (found is None and ratio == best):
            best, found = ratio, choice
    return found


def expects(key: Key, item: dict[str, Any] | None = None) -> str:
    """Say in words which values a key takes, or, given the schema of one, the items of its list."""
    if item is not None:
        return _words(item)
    if key.tagged:
        return f"a table with kind = {_either(table.kind for table in key.tables)}"
    return "a table" if key.tables else _words(key.value)


def plain(value: object) -> str:
    """Write a value as the file would."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        said = {name: inner for name, inner in value.items() if inner is not None}  # TOML has no null
        return "{ " + ", ".join(f"{name} = {plain(inner)}" for name, inner in said.items()) + " }" if said else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(plain, value)) + "]"
    return str(value)


def _words(value: dict[str, Any]) -> str:
    if "enum" in value:
        return _either(value["enum"])
    kind = value.get("type")
    if kind == "array":
        count = f" of {value['minItems']}" if "minItems" in value else ""
        return f"a list{count}, each {_words(value['items'])}"
    if kind == "integer":
        return "a whole number" + _bounds(value)
    if kind == "number":
        return "a number" + _bounds(value)
    if kind == "boolean":
        return "true or false"
    return f"a text that matches {value['pattern']}" if "pattern" in value else "a text"


def _bounds(value: dict[str, Any]) -> str:
    if "minimum" in value and "maximum" in value:
        return f" from {value['minimum']} to {value['maximum']}"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = " and ".join(f"{sign} {value[name]}" for name, sign in signs.items() if name in value)
    return f" {bounds}" if bounds else ""


def _either(choices: Iterable[object]) -> str:
    *others, last = map(plain, choices)
    return f"{', '.join(others)} or {last}" if others else last


def _table(schema: dict[str, Any], definitions: dict[str, Any], kind: str) -> Table:
    required = schema.get("required", [])
    keys = {}
    for name, field in schema.get("properties", {}).items():
        if kind and name == "kind":
            continue
        tables = _tables(field, definitions)
        default = field.get("default")
        if not default and any(not table.kind for table in tables):
            default = None
        value = {} if tables else _value(field)
        keys[name] = Key(field.get("description", ""), name in required, default, value, tables)
    return Table(kind, schema.get("description", ""), keys)


def _tables(field: dict[str, Any], definitions: dict[str, Any]) -> tuple[Table, ...]:
    if "discriminator" in field:
        mapping = field["discriminator"]["mapping"]
        return tuple(_table(_resolve(ref, definitions), definitions, kind) for kind, ref in mapping.items())
    for holder in (field, *field.get("allOf", [])):
        if "$ref" in holder:
            return (_table(_resolve(holder["$ref"], definitions), definitions, ""),)
    return ()


def _resolve(reference: str, definitions: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = definitions[reference.rpartition("/")[2]]
    return found


def _whole(bound: Any) -> Any:
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _value(field: dict[str, Any]) -> dict[str, Any]:
    """Reduce a JSON Schema to what matters, so that pydantic's versions agree."""
    for choice in field.get("anyOf", []):
        if choice.get("type") != "null":  # TOML has no null: a key that may be None is one that may be left out
            return _value(choice)
    value = {name: _whole(field[name]) for name in _KEPT if name in field}
    if "const" in field:
        value["enum"] = [field["const"]]
    if value.get("type") == "integer" and "exclusiveMinimum" in value:
        value["minimum"] = value.pop("exclusiveMinimum") + 1
    if "items" in field:
        value["items"] = _value(field["items"])
    if "prefixItems" in field:  # tuples of the schema have items of one sort
        value["items"] = _value(field["prefixItems"][0])
    return value
