"""Reads untrusted files, texts and numbers; invalid content raises an `InputError` and nothing else."""

from __future__ import annotations

import errno
import gzip
import json
import re
import stat
import sys
import tomllib
import zlib
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hpcps.errors import InputError

T = TypeVar("T")

MiB = 2**20

_DEEPEST = 64
_LONGEST_KEY = 64
_QUOTED = r"\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'"
_PART = rf"(?:[\w-]+|{_QUOTED})"
# The run time of the TOML lexer is quadratic in the number of a key's parts.
_LONG_KEY = re.compile(
    rf"(?P<long>{_PART}(?:[ \t]*\.[ \t]*{_PART}){{{_LONGEST_KEY},}})|"
    # An unterminated string ends with the line, or with the text.
    r'"""(?:\\[\s\S]|[^\\])*?(?:"""|\Z)|\'\'\'[\s\S]*?(?:\'\'\'|\Z)|"(?:\\.|[^"\\\n])*"?|\'[^\'\n]*\'?|#[^\n]*|[\w-]+'
)
_LONGEST_NUMBER = 4096
"""Bits."""


def regular(path: Path) -> Path:
    """Return the path of a file, if it can be read to its end without waiting for another process.

    Opening a named pipe waits for a process that writes into it, possibly for ever. The files in `/dev`, such as
    `/dev/stdin` and the `/dev/fd/63` of a shell's `<(command)`, are passed: only a person names them. Those in
    `/dev/shm` are files like others.

    Raises:
        OSError: it does not exist, or is a pipe, a socket or a device.
    """
    mode = path.stat().st_mode
    named = path.parts[:2] == ("/", "dev") and path.parts[2:3] != ("shm",)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or named):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, and not a file", str(path))
    return path


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Read a file of at most `most` bytes.

    Raises:
        InputError: it cannot be read, or is larger.
    """
    try:
        with regular(path).open("rb") as file:
            content = file.read(-1 if most is None else most + 1)
    except FileNotFoundError as error:
        raise InputError(path, "there is no such file") from error
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})") from error
    except (ValueError, MemoryError) as error:  # a path with a null byte; not enough memory
        raise InputError(path, f"cannot be read ({error or 'it is too large for the memory'})") from error
    return _bounded(path, content, most)


def read_gzip(path: Path, most: int) -> bytes:
    """Read a compressed file of at most `most` uncompressed bytes; at most one byte more is uncompressed.

    Raises:
        InputError: it cannot be read, is damaged, or is larger.
    """
    try:
        with gzip.open(regular(path)) as file:
            content = file.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(path, f"truncated or corrupt ({error})") from error
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})") from error
    return _bounded(path, content, most)


def read_text(path: Path, most: int | None = None) -> str:
    """Read a text of at most `most` bytes, without the byte order mark with which some editors begin a file.

    Raises:
        InputError: it cannot be read, is larger, or is not UTF-8.
    """
    content = read_bytes(path, most)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{line}", "not UTF-8 text, as it must be") from error


def read_json(path: Path, most: int | None = None) -> Any:
    """Read a JSON file of at most `most` bytes.

    Raises:
        InputError: it cannot be read, is larger, or is not JSON.
    """
    return parse_json(path, read_bytes(path, most))


def parse_json(name: object, content: bytes | str) -> Any:
    """Read a JSON text; `name` is its name in the error.

    Raises:
        InputError: it is not JSON.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError, MemoryError) as error:  # a ValueError also if it is not UTF-8
        raise InputError(name, f"not valid JSON ({error})") from error


def parse_as(kind: type[T], name: object, content: bytes | str) -> T:
    """Read a JSON text of a type, such as a named tuple; numbers and texts are not converted to each other.

    Raises:
        InputError: it is not JSON, or has another form.
    """
    from pydantic import ValidationError

    try:
        form: Any = kind
        read: T = _adapter(form).validate_json(content, strict=True)
        return read
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(name, f"{place}: {first['msg']}" if place else first["msg"]) from error


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # here, because its import takes long

    return TypeAdapter(kind)


def parse_toml(name: object, text: str) -> dict[str, Any]:
    """Read a TOML text; `name` is its name in the error.

    Raises:
        InputError: it is not TOML, its tables or lists are nested too deeply, or a number or key is too long.
    """
    if found := next((match for match in _LONG_KEY.finditer(text) if match["long"]), None):
        line = text.count("\n", 0, found.start()) + 1
        raise InputError(f"{name}:{line}", f"a key of more than {_LONGEST_KEY} parts")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, place = str(error), f":{text.count(chr(10)) + 1}"
        if known := re.search(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", what):
            what, place = known[1], f":{known[2]}:{known[3]}" if known[2] else place
        raise InputError(f"{name}{place}", f"not valid TOML: {what}") from error
    except (ValueError, MemoryError) as error:  # Python does not read a number of 5000 digits
        digits = max(re.finditer(r"[0-9_]+", text), key=lambda match: len(match[0]))
        line, count = text.count("\n", 0, digits.start()) + 1, len(digits[0].replace("_", ""))
        raise InputError(f"{name}:{line}", f"a number in it is too long: it has {count:,} digits") from error
    except RecursionError:
        raise InputError(name, f"lists or tables are nested more than {_DEEPEST} deep") from None
    _check(name, tables)
    return tables


def printable(text: str) -> str:
    """Return a text in one line without characters that control a terminal: these are escaped, line breaks are blanks.

    Such characters are controls (ESC) and formats (U+202E, which reverses the order of what follows).
    """
    if text.isprintable():
        return text
    words = " ".join(text.splitlines())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def whole_number(text: str, least: int, most: int) -> int | None:
    """Read a number in decimal digits; None if it is not a number from `least` to `most`."""
    if not (text.isascii() and text.isdigit() and len(text.lstrip("0")) <= len(str(most))):
        return None
    return number if least <= (number := int(text)) <= most else None


def finite(value: object, otherwise: float = 0.0) -> float:
    """Return a value as a float if it is a number that a finite float can hold, else `otherwise`."""
    usable = isinstance(value, (int, float)) and -sys.float_info.max <= value <= sys.float_info.max
    return float(value) if usable else otherwise  # type: ignore[arg-type]


def _bounded(path: Path, content: bytes, most: int | None) -> bytes:
    if most is not None and len(content) > most:
        raise InputError(path, f"corrupt or too large: more than {most:,} bytes")
    return content


def _check(name: object, tables: dict[str, Any]) -> None:
    level: list[tuple[str, Any]] = [*tables.items()]
    for _ in range(_DEEPEST):
        for key, value in level:
            if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER:
                raise InputError(name, f"{key[:60]}: a number of more than {_LONGEST_NUMBER} bits")
        level = [(key, inner) for key, value in level for inner in _inside(value)]
    if level:
        raise InputError(name, f"{level[0][0][:60]}: lists or tables are nested more than {_DEEPEST} deep")


def _inside(value: object) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
