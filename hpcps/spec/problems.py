"""Mistakes in a run's values, as messages for users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from hpcps.errors import SpecError
from hpcps.inputs import printable
from hpcps.registry import KINDS, Config, active
from hpcps.registry.similarity import nearest
from hpcps.spec.keys import Key, Table, dotted_keys, expects, keys_of, plain, root
from hpcps.spec.locate import Path

SERVERS, WORKERS, VALIDATORS = ("topology", "servers"), ("topology", "workers"), ("topology", "validators")
DATA, MODE, EXCHANGE = ("data", "name"), ("train", "mode"), ("train", "exchange")
BUFFER = ("asynchronous", "buffer")
"""The paths of keys that several checks name."""


MOST_EXPLAINED = 100
"""The most wrong keys of a table that are explained: to compare a key with all valid ones takes milliseconds."""


@dataclass(frozen=True)
class Problem:
    """One mistake.

    Attributes:
        path: the key that has the mistake.
        message: what is wrong and how to correct it.
        involves: other keys that contribute to the mistake.
        missing: whether a required key is absent (so that it has no line).
        stands_for: keys that the user probably meant, which are therefore not reported as missing.
    """

    path: Path
    message: str
    involves: tuple[Path, ...] = ()
    missing: bool = False
    stands_for: tuple[Path, ...] = ()


def dotted(path: Path) -> str:
    """Return a path as messages show it: `train.lr_decay.epochs[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{printable(part)}" for part in path).lstrip(".")


def quote(value: object, limit: int = 60) -> str:
    """Return a value in the notation of the file, shortened if it is long."""
    text = plain(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def explain(component: type[Config], error: ValidationError) -> SpecError:
    """Return the error for wrong arguments of a component's constructor; it lists all of them, as for a file."""
    kind = next((kind for kind in KINDS.values() if issubclass(component, kind.base_class())), None)
    name = kind.name_of(component) if kind else component.__name__
    keys = {key: value for key, value in keys_of(component).items() if key != "kind"}
    tagged = kind is not None and kind.tag == "kind"
    table = Table(name if tagged else "", "", keys)
    at = tuple(kind.key.split(".")) if kind and kind.key else (component.__name__,)
    details = error.errors(include_url=False)
    problems = [problem for detail in details for problem in translate(detail, table, at)]
    texts = dict.fromkeys(f"{dotted(problem.path)}: {problem.message}" for problem in problems)
    heading = f"{kind.noun if kind else 'table'} {name}: {len(texts)} mistake{'s' * (len(texts) > 1)}"
    return SpecError("\n  ".join([heading, *(text.replace("\n", "\n      ") for text in texts)]))


def translate_all(
    errors: Sequence[Mapping[str, Any]], each: Callable[[Mapping[str, Any]], list[Problem]]
) -> list[Problem]:
    """Convert the error details of one table to problems, the first of them only if there are very many.

    Args:
        errors: the details.
        each: converts one of them.
    """
    found = [problem for error in errors[:MOST_EXPLAINED] for problem in each(error)]
    if left := errors[MOST_EXPLAINED:]:
        more = f"and up to {len(left):,} more mistakes, which are not explained: correct the others first"
        found.append(Problem(each(left[0])[0].path, more))
    return found


def translate(error: Mapping[str, Any], outer: Table | None = None, at: Path = ()) -> list[Problem]:
    """Convert an error detail of pydantic to problems; a missing table gives one problem for each required key.

    Args:
        error: the detail.
        outer: the table that was validated; by default the whole file.
        at: the path of that table.
    """
    path, key, table = _follow(error["loc"], outer or root(), at)
    kind, value = error["type"], error["input"]
    if kind.startswith("component_") and key is not None:
        return _component(error, path, key, partial(translate, outer=outer, at=at))
    if kind == "missing" and key is not None and isinstance(path[-1], str):
        return missing(path, key)
    if kind == "extra_forbidden" or key is None:
        return [_unknown(path, table)]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return [_kind(path, key, value)]
    if kind == "value_error":
        return [Problem(path, str(error["ctx"]["error"]))]
    return [Problem(path, _unexpected(path, key, value))]


def _component(
    error: Mapping[str, Any], path: Path, key: Key, again: Callable[[Mapping[str, Any]], list[Problem]]
) -> list[Problem]:
    """Return the problems of a table that names a component (see `registry.OneOf`), and of the keys inside it."""
    kind, value = error["type"], error["input"]
    inside = error.get("ctx", {}).get("errors", ())
    named = [value["kind"]] if key.tagged and isinstance(value, Mapping) and "kind" in value else []
    own = None if key.tagged else _own_table(path, value)

    def explain_inner(each: Mapping[str, Any]) -> list[Problem]:
        if own is None or each["type"] == "extra_forbidden":
            return again({**each, "loc": (*error["loc"], *named, *each["loc"])})
        return translate(each, own, path)

    problems = translate_all(inside, explain_inner)
    if kind == "component_invalid":
        return problems
    if kind == "component_broken":
        return [Problem(path, error["ctx"]["error"])]
    if not isinstance(value, Mapping) or not key.tables:
        return [Problem(path, _unexpected(path, key, value))]
    if key.tagged:
        return [_kind(path, key, value), *problems]
    if kind == "component_missing":
        return missing(path, key, value)
    name = error["ctx"]["tag"]
    return [Problem((*path, name), _unexpected((*path, name), key.tables[0].keys[name], value[name])), *problems]


def _own_table(path: Path, value: object) -> Table | None:
    """Return the keys of the component that a table names with `name`: another component may have one of them too."""
    kind = next((kind for kind in KINDS.values() if kind.key == dotted(path)), None)
    name = value.get(kind.tag) if kind is not None and isinstance(value, Mapping) else None
    component = active().of(kind.name).get(name) if kind is not None and isinstance(name, str) else None
    return None if component is None else Table("", "", keys_of(component))


def _unknown(path: Path, table: Table) -> Problem:
    """Return the problem of an unknown key, with the valid keys and the most similar one."""
    known = table.keys.get(str(path[-1]))
    if known is not None and known.only:
        kind = next((kind for kind in KINDS.values() if kind.default and kind.key == dotted(path[:-1])), None)
        if kind is None:
            return Problem(path, f"only for {' and '.join(known.only)}: leave it out")
        tag, owners = (*path[:-1], kind.tag), " or ".join(map(plain, known.only))
        return Problem(path, f"has an effect only with {dotted(tag)} = {owners}: set that, or leave it out", (tag,))
    names = [*table.keys, "sweep", "exclude", "include", "search"] if len(path) == 1 else [*table.keys]
    close = nearest(str(path[-1]), names)
    guess = close or nearest(str(path[-1]), [name for name, _ in dotted_keys()])
    owner = f"[{dotted(path[:-1])}]" if len(path) > 1 else "the top level"
    if table.kind:
        owner += f' of kind "{table.kind}"'
    if guess == dotted(path) or not table.keys:
        guess = None  # the key exists, but in another kind
    message = f"unknown key{_meant(guess)}\n{owner} takes {_takes(table, names)}"
    return Problem(path, message, stands_for=((*path[:-1], close),) if close else ())


def _takes(table: Table, names: list[str]) -> str:
    known = [name for name in names if name in table.keys]
    plain_keys = [name for name in known if not table.keys[name].tables or table.keys[name].numeric]
    tables = [name for name in names if name not in plain_keys]
    said = [", ".join(name + _default(table.keys[name]) for name in plain_keys)] if plain_keys else []
    if tables:
        said.append(f"the table{'s' * (len(tables) > 1)} {', '.join(tables)}")
    return "; ".join(said) or "no keys but kind"


def _meant(guess: str | None) -> str:
    return f": did you mean {guess}?" if guess else ""


def _default(key: Key) -> str:
    if key.required:
        return " (required)"
    return "" if key.default in (None, "") else f" = {plain(key.default)}"


def _follow(loc: tuple[str | int, ...], table: Table, path: Path) -> tuple[Path, Key | None, Table]:
    """Resolve pydantic's location in the schema, without the tags that pydantic adds after tables of several kinds.

    Args:
        loc: the location.
        table: the table in which it begins.
        path: the path of that table.

    Returns:
        The path in the file, the key at its end (None if the schema does not have that key), and the table that
        contains the key.
    """
    key: Key | None = None
    chosen = False
    for part in loc:
        if key is not None and key.tagged and not chosen:
            of_kind = key.table(str(part))
            if of_kind is None and part in key.value.get("enum", ()):
                of_kind = Table(str(part), "", {})  # a name is all that it takes
            if of_kind is not None:
                table, chosen = of_kind, True
                continue
        path += (part,)
        if isinstance(part, str):
            if key is not None and key.tables and not key.tagged:
                table = key.tables[0]
            key, chosen = table.keys.get(part), False
        if key is not None and "anyOf" in key.value:
            break  # the rest of the location is the type that pydantic tried
    return path, key, table


def missing(path: Path, key: Key, table: object = None) -> list[Problem]:
    """Return the problem of a missing key, or those of the required keys of a missing table; `table` is what is there.

    A component's name may be there under another key, since some tables call it `name` and others `kind`.
    """
    if not key.tables and "enum" in key.value:
        hint = _misnamed(path, key.value["enum"], table)
        return [Problem(path, f"required: {hint}" if hint else f"required: choose {expects(key)}", missing=True)]
    if not key.tables or key.tagged:
        message = f"required but missing: {expects(key)}. {key.description}"
        return [Problem(path, message, missing=True)]
    needed = [(name, inner) for name, inner in key.tables[0].keys.items() if inner.required]
    return [problem for name, inner in needed for problem in missing((*path, name), inner, table)]


def _misnamed(path: Path, choices: Sequence[str], table: object) -> str:
    """Return the hint that the table names the component under `name` instead of `kind`, or the reverse."""
    right, wrong = path[-1], "kind" if path[-1] == "name" else "name"
    found = table.get(wrong) if isinstance(table, Mapping) else None
    return f"the key is {right} here, not {wrong}: {right} = {plain(found)}" if found in choices else ""


def _kind(path: Path, key: Key, value: object) -> Problem:
    noun = key.items or path[-1]
    kinds = key.value.get("enum") or [table.kind for table in key.tables]
    choices = ", ".join(kinds)
    if not isinstance(value, Mapping) or "kind" not in value:
        hint = _misnamed((*path, "kind"), kinds, value)
        message = f"missing: {hint}" if hint else f"missing: which {noun}? choices: {choices}"
        return Problem((*path, "kind"), message, missing=True)
    kind = value["kind"]
    guess = nearest(kind, kinds) if isinstance(kind, str) else None
    did_you_mean = f": did you mean {plain(guess)}?" if guess else ";"
    return Problem((*path, "kind"), f"unknown {noun} {quote(kind)}{did_you_mean} choices: {choices}")


def _beside(path: Path, value: str) -> str | None:
    """Return what selects the component of this name, if another key of the same table does."""
    kinds = [kind for kind in KINDS.values() if kind.tag == "kind" and kind.key.startswith(f"{path[0]}.")]
    kind = next((kind for kind in kinds if value in active().of(kind.name)), None)
    return f"{kind.key} = {plain({'kind': value})}" if kind else None


def _unexpected(path: Path, key: Key, value: object) -> str:
    if isinstance(path[-1], int) and not key.items:
        if isinstance(value, list):  # pydantic reports a list that is too short as a missing item
            return f"expects {expects(key)}, got {quote(value)}"
        return f"expects {expects(key, key.value['items'])}, got {quote(value)}"
    if isinstance(path[-1], int):
        close = nearest(value, (table.kind for table in key.tables)) if isinstance(value, str) else None
        return f"expects {expects(key.item)}, got {quote(value)}{_meant(plain(close) if close else None)}"
    guess = None
    if isinstance(value, str) and key.tagged:
        kind = nearest(value, (table.kind for table in key.tables))
        guess = plain([kind] if key.items and key.value else {"kind": kind}) if kind else None
    elif isinstance(value, str) and "enum" in key.value:
        choice = nearest(value, key.value["enum"])
        unfinished = choice is not None and choice.startswith(value)
        guess = (None if unfinished else _beside(path, value)) or (plain(choice) if choice else None)
    default = "" if key.default is None or key.required else f" (default {plain(key.default)})"
    return f"expects {expects(key)}{default}, got {quote(value)}{_meant(guess)}"
