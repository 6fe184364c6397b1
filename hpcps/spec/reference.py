"""Generates the reference in the documentation; `python -m hpcps.spec.reference docs` updates it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcps.spec.file_schema import file_schema
from hpcps.spec.identity import IRRELEVANT, REMEMBERED, TIMED
from hpcps.spec.keys import Key, Table, expects, plain, root
from hpcps.spec.presets import ASYNC_PRESETS, PRESETS, Derived
from hpcps.spec.search import search_table

BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def reference() -> str:
    """Return the reference in Markdown: all keys, the presets, and the keys that do not affect the run id."""
    return "\n".join([*_keys("", root(), set()), *_search(), *_presets(), *_identity()])


def key_table(keys: Mapping[str, Key]) -> str:
    """Return the keys of a table of the experiment file as a table in Markdown."""
    rows = [
        f"| `{n}` | {_cell(expects(key))} | {_default(key)} | {_cell(key.description)} |" for n, key in keys.items()
    ]
    return "\n".join(["| Key | Value | Default | Meaning |\n|---|---|---|---|", *rows])


def schema_text() -> str:
    """Return the JSON Schema of the experiment file in its committed form."""
    return json.dumps(file_schema(), indent=2, ensure_ascii=False) + "\n"


def refreshed(page: str) -> str:
    """Return a page with its generated part updated."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def _keys(path: str, table: Table, listed: set[str]) -> Iterator[str]:
    """Yield the keys below a table; `listed`: lists of tables that several kinds have, which are described once."""
    title = f"`[{path}]`" if path else "Top level"
    if table.kind:
        title += f' with `kind = "{table.kind}"`'
    yield f"### {title}\n"
    if table.description and path:
        yield f"{_text(table.description)}\n"
    values = {name: key for name, key in table.keys.items() if not key.tables or key.items or key.numeric}
    if values:
        yield f"{key_table(values)}\n"
    for name, key in table.keys.items():
        inner = f"{path}.{name}" if path else name
        if inner in listed:
            continue
        if key.items:
            listed.add(inner)
        if key.numeric:
            yield f"### `[{inner}]`\n"
            yield "A table instead of a number; `kind` selects the policy.\n"
        elif key.tagged:
            yield f"### `[{inner}]`\n"
            # Where a name alone is enough, a component without keys has no table.
            usual = key.default["kind"] if key.value and set(key.default) == {"kind"} else key.default
            default = "" if key.required else f"; the default is {_code(usual)}"
            yield f"{_text(key.description)} `kind` selects it{default}.\n"
        for each in key.tables:
            yield from _keys(inner, each, listed)


def _search() -> Iterator[str]:
    """Yield the keys of the search, which are no keys of a run."""
    _, *lines = _keys("", search_table(), set())
    yield from lines


def _presets() -> Iterator[str]:
    titles = {
        "### Keys that `fidelity` sets\n": PRESETS,
        '### Keys that `fidelity` sets in addition with `train.mode = "async"`\n': ASYNC_PRESETS,
    }
    for title, presets in titles.items():
        yield title
        yield f"| Key | {' | '.join(_code(name) for name in presets)} |\n|---|{'---|' * len(presets)}"
        for key in dict.fromkeys(key for preset in presets.values() for key in preset):
            yield f"| `{'.'.join(key)}` | {' | '.join(_set_to(preset.get(key)) for preset in presets.values())} |"
        yield ""


def _identity() -> Iterator[str]:
    yield "### Keys that do not affect a run's id\n"
    timed, remembered = (", ".join(f"`{key}`" for key in sorted(keys)) for keys in (TIMED, REMEMBERED))
    yield (
        ", ".join(f"`{key}`" for key in sorted(IRRELEVANT)) + f". With a `simulation`, {timed} affects it; with "
        f'`survive.residual = "checkpoint"`, so do {remembered}.\n'
    )


def _default(key: Key) -> str:
    if key.required:
        return "required"
    return "" if key.default in (None, "") else _code(key.default)


def _set_to(value: object) -> str:
    if value is None:
        return ""
    return value.words if isinstance(value, Derived) else _code(value)


def _code(value: object) -> str:
    return f"`{plain(value)}`"


def _text(text: str) -> str:
    return text.replace("<", "&lt;")


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def main(folder: Path) -> None:
    """Update the reference page and the JSON Schema in a folder."""
    page = folder / "reference" / "experiment-file.md"
    page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "experiment.schema.json").write_text(schema_text(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
