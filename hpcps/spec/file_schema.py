"""The JSON Schema of the experiment file, for editors that complete and check TOML."""

from __future__ import annotations

from typing import Any

from hpcps.spec.keys import Key, Table, conditions, dotted_keys, root
from hpcps.spec.search import search_table

Schema = dict[str, Any]


def file_schema() -> Schema:
    """Return the JSON Schema (draft 7) of an experiment file.

    It is the schema of a run with sweep, exclusions, inclusions and search. With a sweep, only the name is required,
    because the sweep may set the other required keys.
    """
    definitions: dict[str, Schema] = {}
    top = _table(root(), "", definitions)
    top["properties"]["sweep"] = {
        "type": "array",
        "minItems": 1,
        "description": "Points are the product of all [[sweep]] tables; the keys of one table vary together.",
        "items": _changes("sweep", root(), "", definitions),
    }
    top["properties"]["exclude"] = {
        "type": "array",
        "description": "Removes the points of the product that have all values of a table; a list: any of its values.",
        "items": _changes("exclude", root(), "", definitions),
    }
    included = _changes("include", root(), "", definitions)
    included["properties"]["label"] = {"type": "string", "description": "The label of the point."}
    top["properties"]["include"] = {
        "type": "array",
        "description": "Additional points, one for each [[include]]: the base with these values.",
        "items": included,
    }
    top["properties"]["search"] = _search(definitions)
    required = _required(root())
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "hpcps experiment file",
        **top,
        "required": ["name"],
        "if": {"required": ["sweep"]},
        "then": True,
        "else": required,
        "definitions": definitions,
    }


def _search(definitions: dict[str, Schema]) -> Schema:
    """Return the schema of `[search]`; of its values, only the names are checked."""
    schema = _described(search_table().keys["search"], "search", definitions)
    names: Schema = {"propertyNames": {"enum": conditions()}, "additionalProperties": {"type": ["array", "object"]}}
    definitions["search.values"] = {"type": "object", "minProperties": 1, **names}
    for name, definition in definitions.items():
        if name.startswith("search:"):
            about = definition["properties"]["values"]["description"]
            definition["properties"]["values"] = {
                "description": about,
                "allOf": [{"$ref": "#/definitions/search.values"}],
            }
    return schema


def _table(table: Table, path: str, definitions: dict[str, Schema]) -> Schema:
    properties = {name: _described(key, f"{path}{name}", definitions) for name, key in table.keys.items()}
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    if table.kind:
        properties["kind"] = {"const": table.kind}
        schema["required"] = ["kind", *(name for name, key in table.keys.items() if key.required)]
    return {"description": table.description, **schema} if path else schema


def _described(key: Key, path: str, definitions: dict[str, Schema]) -> Schema:
    schema: Schema = {"description": key.description} if key.description else {}
    if key.default is not None and not key.required:
        schema["default"] = key.default
    value = _value(key, path, definitions)
    if "$ref" in value:
        return {**schema, "allOf": [value]} if schema else value  # draft 7 ignores other keys beside a $ref
    return {**schema, **value}


def _value(key: Key, path: str, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a key's value; each table is defined once and referenced."""
    if not key.tables:
        return key.value
    references = []
    for table in key.tables:
        name = f"{path}:{table.kind}" if table.kind else path
        if name not in definitions:
            definitions[name] = {}  # comes before the tables inside it
            definitions[name].update(_table(table, f"{path}.", definitions))
        references.append({"$ref": f"#/definitions/{name}"})
    tables: Schema = {"oneOf": references} if key.tagged else references[0]
    if key.items:
        return {"type": "array", "items": {"anyOf": [key.value["items"], tables]} if key.value else tables}
    return {"anyOf": [key.value, tables]} if key.value else tables


def _changes(use: str, table: Table, path: str, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a table of a sweep, an exclusion or an inclusion, under plain or dotted names.

    A sweep has a list of values for each key; an exclusion has values or lists of values.
    """
    properties: dict[str, Schema] = {}
    keys = dict(dotted_keys(table))
    for name, choices in _choices(table, path, definitions).items():
        if path + name == "name":
            continue
        kinds = [inner.kind for inner in keys[name].tables if inner.kind] if use == "exclude" and name in keys else []
        if kinds:
            choices = [*choices, {"enum": kinds}]
        definition = f"{'kind or value' if kinds else 'value'}:{path}{name}"
        definitions[definition] = choices[0] if len(choices) == 1 else {"anyOf": choices}
        item: Schema = {"$ref": f"#/definitions/{definition}"}
        several: Schema = {"type": "array", "minItems": 1, "items": item}
        uses: dict[str, Schema] = {"sweep": several, "exclude": {"anyOf": [item, several]}, "include": item}
        properties[name] = uses[use]
    for name, key in table.keys.items():
        if len(key.tables) == 1 and not key.tagged and not key.items:
            definition = f"{use}:{path}{name}"
            definitions[definition] = _changes(use, key.tables[0], f"{path}{name}.", definitions)
            properties[name] = {"anyOf": [properties[name], {"$ref": f"#/definitions/{definition}"}]}
    return {"type": "object", "minProperties": 1, "additionalProperties": False, "properties": properties}


def _choices(table: Table, path: str, definitions: dict[str, Schema], prefix: str = "") -> dict[str, list[Schema]]:
    """Return the schemas of each key below a table, by dotted name; several if kinds have different ones."""
    found: dict[str, list[Schema]] = {}
    for name, key in table.keys.items():
        found[prefix + name] = [_value(key, f"{path}{prefix}{name}", definitions)]
        if key.tagged:
            found[f"{prefix}{name}.kind"] = [{"enum": [inner.kind for inner in key.tables]}]
        for inner in () if key.items and not key.tagged else key.tables:
            for dotted, schemas in _choices(inner, path, definitions, f"{prefix}{name}.").items():
                known = found.setdefault(dotted, [])
                known += [schema for schema in schemas if schema not in known]
    return found


def _required(table: Table) -> Schema:
    names = [name for name, key in table.keys.items() if key.required]
    schema: Schema = {"required": names} if names else {}
    inner = {name: _required(table.keys[name].tables[0]) for name in names if table.keys[name].tables}
    return {**schema, "properties": inner} if inner else schema
