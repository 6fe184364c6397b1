"""The keys of an experiment file, read from the schema, for messages, the reference and editors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from hpcps.inputs import printable
from hpcps.registry import Config, Registry, active
from hpcps.spec.schema import Run

_KEPT = (
    "type", "enum", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "pattern", "minItems", "maxItems",
)  # fmt: skip


@dataclass(frozen=True)
class Key:
    """One key of a table.

    Attributes:
        description: its meaning, with its unit.
        required: whether a run must set it.
        default: its default, as in JSON; None if the default follows from other keys or the key is not set.
        value: the JSON Schema of a plain value; empty for a table.
        tables: the tables that it may contain: none, one, or one for each `kind`.
        only: the names of the components that have this key, if not all components of the table have it.
        items: what an item is, if the value is a list of tables; empty if it is none.
    """

    description: str
    required: bool
    default: Any
    value: dict[str, Any]
    tables: tuple[Table, ...]
    only: tuple[str, ...] = ()
    items: str = ""

    @property
    def tagged(self) -> bool:
        """Whether `kind` decides which keys the table takes."""
        return bool(self.tables) and self.tables[0].kind != ""

    @property
    def item(self) -> Key:
        """An item, if the value is a list of tables, or of tables and names."""
        return replace(self, items="", value=self.value.get("items", {}))

    @property
    def numeric(self) -> bool:
        """Whether it takes a number besides tables."""
        return self.tagged and self.value.get("type") == "integer"

    def table(self, kind: str) -> Table | None:
        """Return the table of this kind."""
        return next((table for table in self.tables if table.kind == kind), None)


@dataclass(frozen=True)
class Table:
    """The keys of one table; `kind` is empty unless the table is one of several kinds."""

    kind: str
    description: str
    keys: dict[str, Key]


def root() -> Table:
    """Return the top level of the experiment file, without `[[sweep]]`, with the components of the active registry."""
    return _root(active())


class _Schema(GenerateJsonSchema):
    """Writes most defaults as they are: pydantic would make a serializer for each, which takes most of the time."""

    def encode_default(self, dft: Any) -> Any:
        if dft is None or type(dft) in (str, int, float, bool):
            return dft
        return super().encode_default(dft)


@lru_cache(maxsize=8)
def _root(registry: Registry) -> Table:
    assert registry is active()  # the schema uses the active registry
    schema = Run.model_json_schema(schema_generator=_Schema)
    return _table(schema, schema.get("$defs", {}), "")


def keys_of(component: type[Config]) -> dict[str, Key]:
    """Return the keys of one component."""
    schema = component.model_json_schema(schema_generator=_Schema)
    return _table(schema, schema.get("$defs", {}), "").keys


def dotted_keys(table: Table | None = None, prefix: str = "") -> Iterator[tuple[str, Key]]:
    """Yield every key below a table with its dotted path, once for each kind that has the key."""
    for name, key in (table or root()).keys.items():
        yield prefix + name, key
        for inner in key.tables:
            yield from dotted_keys(inner, f"{prefix}{name}.")


def conditions() -> list[str]:
    """Return the keys that a condition on a point may name, in alphabetical order; `kind` also of tagged tables."""
    return sorted({each for name, key in dotted_keys() for each in (name, *([f"{name}.kind"] if key.tagged else []))})


def expects(key: Key, item: dict[str, Any] | None = None) -> str:
    """Describe the values that a key takes, or the items of its list if `item` is their schema."""
    if item is not None:
        return _words(item)
    if key.tagged:
        kinds = [table.kind for table in key.tables]
        table = "a table of this kind" if key.value.get("enum") == kinds else f"a table with kind = {_either(kinds)}"
        if key.items:
            return f"a list, each {expects(key.item)}" if key.value else f"a list of tables, each{table[7:]}"
        return f"{_words(key.value)}, or {table}" if key.value else table
    if key.items:
        return "a list of tables"
    return "a table" if key.tables else _words(key.value)


def plain(value: object) -> str:
    """Return a value in the notation of the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{printable(value)}"'
    if isinstance(value, dict):
        said = {name: inner for name, inner in value.items() if inner is not None}  # TOML has no null
        return "{ " + ", ".join(f"{name} = {plain(inner)}" for name, inner in said.items()) + " }" if said else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(plain, value)) + "]"
    return str(value)


def _words(value: dict[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(map(_words, value["anyOf"]))
    if "enum" in value:
        return _either(value["enum"])
    kind = value.get("type")
    if kind == "array":
        count = f" of {value['minItems']}" if "minItems" in value else ""
        count = f" of at most {value['maxItems']}" if "maxItems" in value and not count else count
        return f"a list{count}, each {_words(value['items'])}"
    if kind == "integer":
        return "a whole number" + _bounds(value)
    if kind == "number":
        return "a number" + _bounds(value)
    if kind == "boolean":
        return "true or false"
    if kind == "object":
        return "a table"
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
        item = field.get("items", {})
        listed = item if "discriminator" in item or "$ref" in item else {}
        tables = _tables(listed or field, definitions)
        default = field.get("default")
        if not default and any(not table.kind for table in tables):
            default = None
        if isinstance(default, dict) and len(tables) > 1:
            default = _shortened(default, tables)
        plain = field.get("shorthand") or field.get("plain") or listed.get("shorthand")
        value = {} if tables and not plain else _value(field)
        about = field.get("description", "")
        items = (listed.get("noun") or field["noun"]) if listed else ""
        keys[name] = Key(about, name in required, default, value, tables, items=items)
    return Table(kind, schema.get("description", ""), keys)


def _shortened(default: dict[str, Any], tables: tuple[Table, ...]) -> dict[str, Any]:
    """Return a default table without the defaults of keys that nearly all kinds have."""
    shared = {name for name in default if sum(name in table.keys for table in tables) > 0.8 * len(tables)}
    keys = next((table.keys for table in tables if table.kind == default.get("kind")), {})
    return {name: value for name, value in default.items() if name not in shared or keys[name].default != value}


def _tables(field: dict[str, Any], definitions: dict[str, Any]) -> tuple[Table, ...]:
    if "discriminator" in field:
        tag = field["discriminator"]["propertyName"]
        schemas = [_resolve(each["$ref"], definitions) if "$ref" in each else each for each in field["oneOf"]]
        if tag != "kind" or "default_component" in field:
            return (_merged([_table(schema, definitions, "") for schema in schemas], tag, field),)
        tables = [_table(schema, definitions, schema["properties"][tag]["const"]) for schema in schemas]
        return tuple(table for table in tables if table.keys) if field.get("shorthand") else tuple(tables)
    for holder in (field, *field.get("allOf", [])):
        if "$ref" in holder:
            return (_table(_resolve(holder["$ref"], definitions), definitions, ""),)
    return ()


def _merged(tables: list[Table], tag: str, field: dict[str, Any]) -> Table:
    """Return one table with the keys of all components of a kind; the key `tag` selects the component."""
    names = [table.keys[tag].value["enum"][0] for table in tables]
    keys: dict[str, Key] = {}
    for key in dict.fromkeys(key for table in tables for key in table.keys):
        owners = [name for name, table in zip(names, tables, strict=True) if key in table.keys]
        first = tables[names.index(owners[0])].keys[key]
        keys[key] = replace(first, only=() if len(owners) == len(tables) else tuple(owners))
    default, about = field.get("default_component"), f"The {field['noun']}."
    if default:
        said = [f"`{name}`: {_first_line(table.description)}" for name, table in zip(names, tables, strict=True)]
        about = "; ".join(said) + "."
    keys[tag] = replace(
        keys[tag], description=about, required=not default, default=default, value={"enum": names}, only=()
    )
    return Table("", field.get("description", ""), keys)


def _first_line(text: str) -> str:
    """Return the first sentence of a docstring, as a part of another sentence."""
    line = text.partition("\n")[0].removesuffix(".")
    return line[:1].lower() + line[1:]


def _resolve(reference: str, definitions: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = definitions[reference.rpartition("/")[2]]
    return found


def _whole(bound: Any) -> Any:
    return int(bound) if isinstance(bound, float) and bound.is_integer() and abs(bound) < 1e15 else bound


def _value(field: dict[str, Any]) -> dict[str, Any]:
    """Reduce a JSON Schema to the relevant keywords, so that all versions of pydantic give the same result."""
    # TOML has no null: a key that may be None may be left out.
    choices = [_value(choice) for choice in field.get("anyOf", []) if choice.get("type") != "null"]
    if choices:
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    if field.get("plain"):
        return _value(field["plain"])
    if field.get("shorthand"):
        tag = field["discriminator"]["propertyName"]
        return {"enum": [each["properties"][tag]["const"] for each in field["oneOf"]]}
    value = {name: _whole(field[name]) for name in _KEPT if name in field}
    if "const" in field:
        value["enum"] = [field["const"]]
    if value.get("type") == "integer" and "exclusiveMinimum" in value:
        value["minimum"] = value.pop("exclusiveMinimum") + 1
    if "items" in field:
        value["items"] = _value(field["items"])
    if "prefixItems" in field:  # all items of a tuple in the schema have the same type
        value["items"] = _value(field["prefixItems"][0])
    return value
