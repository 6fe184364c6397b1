"""What a caller gives as an experiment: a file, a text or a dictionary, and values for keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import InputError, SpecError
from hpcps.inputs import read_text
from hpcps.registry import Config
from hpcps.spec.load import MOST_BYTES

TEXT, DICTIONARY = Path("<text>"), Path("<dict>")
"""The names of experiments without a file, for messages; relative paths in them start from the working directory."""


@dataclass(frozen=True)
class Content:
    """The content of an experiment file.

    Attributes:
        file: the file, or a name that stands for it.
        text: its content.
    """

    file: Path
    text: str

    @classmethod
    def of(cls, given: str | Path | Mapping[str, Any]) -> Content:
        """Read a file; take a text of more than one line, or a dictionary, as the content of one.

        Raises:
            SpecError: the file cannot be read, or the dictionary holds a value that a file cannot hold.
        """
        if isinstance(given, Mapping):
            return cls(DICTIONARY, "".join(f"{json.dumps(str(key))} = {toml(given[key], str(key))}\n" for key in given))
        if isinstance(given, str) and "\n" in given:
            return cls(TEXT, given)
        if not isinstance(given, str | Path):
            raise SpecError(f"expects a file, the text of one, or a dictionary; got {named(given)}")
        try:
            return cls(Path(given), read_text(Path(given), MOST_BYTES))
        except InputError as error:
            raise SpecError(str(error)) from None


def overrides_of(values: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the values of keys as `hpcps run --set` takes them: `train.epochs=5`.

    Raises:
        SpecError: a value is not one that a file can hold.
    """
    if values is not None and not isinstance(values, Mapping):
        raise SpecError(f'set: expects a dictionary such as {{"train.epochs": 5}}, got {named(values)}')
    return tuple(f"{key}={toml(value, str(key))}" for key, value in (values or {}).items())


def toml(value: Any, key: str) -> str:
    """Return a value in the notation of an experiment file; a component, such as `Zeno(rho=0.1)`, is its table.

    Args:
        value: the value.
        key: its key, for the error.

    Raises:
        SpecError: a file cannot hold the value.
    """
    if isinstance(value, Config):
        value = value.model_dump(mode="json", exclude_none=True)
    if hasattr(value, "tolist"):  # an array or a scalar of numpy
        value = value.tolist()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(k))} = {toml(v, f'{key}.{k}')}" for k, v in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return "[" + ", ".join(toml(each, f"{key}[{place}]") for place, each in enumerate(value)) + "]"
    if value is None:
        raise SpecError(f"{key}: got None; leave the key out to have its default")
    raise SpecError(f"{key}: got {named(value)}; expects a number, a text, true or false, a list or a dictionary")


def named(value: object) -> str:
    """Return the type of a value with its article, for messages."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
