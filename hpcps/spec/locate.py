"""Finds the line of each key in a TOML text, because tomllib does not give lines."""

from __future__ import annotations

import re
from bisect import bisect_right

Path = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Three quotes end a multi-line string; up to two quotes before them belong to its content.
_STRING = re.compile(
    r'"""(?:\\[\s\S]|(?!""")[^\\])*"{3,5}'
    r"|'''(?:(?!''')[\s\S])*'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
)
_SCALAR = re.compile(r"[^,\]}\n#]*")
_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([btnfr"\\]))')
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


def line_of(lines: dict[Path, int], path: Path) -> int:
    """Return the line of a key, or of the nearest enclosing table in the text; 1 if there is none."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return 1


def locate(text: str) -> dict[Path, int]:
    """Map every key of a valid TOML text to its line, counted from 1.

    A path follows the nesting of `tomllib`: `("sweep", 0, "attack", 2, "kind")` is the key `kind` of the third value
    of `attack` in the first `[[sweep]]`.
    """
    return _Scanner(text).document()


class _Scanner:
    """Scans a text that tomllib has accepted, so it does not check the syntax."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.tables: dict[Path, int] = {}
        self.breaks = [match.start() for match in re.finditer("\n", text)]

    def document(self) -> dict[Path, int]:
        table: Path = ()
        self.skip(_BLANK)
        while self.at < len(self.text):
            if self.text.startswith("[[", self.at):
                table = self.header("[[", "]]")
            elif self.text.startswith("[", self.at):
                table = self.header("[", "]")
            else:
                self.pair(table)
            self.skip(_BLANK)
        return self.lines

    def header(self, opening: str, closing: str) -> Path:
        line = self.line()
        self.at += len(opening)
        path: Path = ()
        keys = self.key()
        self.at += len(closing)
        for position, key in enumerate(keys):
            path += (key,)
            self.lines.setdefault(path, line)
            if opening == "[[" and position == len(keys) - 1:
                self.tables[path] = self.tables.get(path, 0) + 1
            if path in self.tables:
                path += (self.tables[path] - 1,)
                self.lines.setdefault(path, line)
        return path

    def pair(self, table: Path) -> None:
        line = self.line()
        path = table
        for key in self.key():
            path += (key,)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self.skip(_SPACE)
        self.value(path)

    def key(self) -> list[str]:
        keys = []
        while True:
            self.skip(_SPACE)
            if self.text[self.at] in "\"'":
                quoted = self.skip(_STRING)
                keys.append(_ESCAPE.sub(_unescape, quoted[1:-1]) if quoted[0] == '"' else quoted[1:-1])
            else:
                keys.append(self.skip(_BARE_KEY))
            self.skip(_SPACE)
            if self.text[self.at] != ".":
                return keys
            self.at += 1

    def value(self, path: Path) -> None:
        start = self.text[self.at]
        if start == "[":
            self.array(path)
        elif start == "{":
            self.inline_table(path)
        else:
            self.skip(_STRING if start in "\"'" else _SCALAR)

    def array(self, path: Path) -> None:
        self.at += 1
        index = 0
        self.skip(_BLANK)
        while self.text[self.at] != "]":
            self.lines[(*path, index)] = self.line()
            self.value((*path, index))
            index += 1
            self.comma()
        self.at += 1

    def inline_table(self, path: Path) -> None:
        self.at += 1
        self.skip(_BLANK)
        while self.text[self.at] != "}":
            self.pair(path)
            self.comma()
        self.at += 1

    def comma(self) -> None:
        self.skip(_BLANK)
        if self.text[self.at] == ",":
            self.at += 1
            self.skip(_BLANK)

    def skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        assert match is not None, f"tomllib accepted what the locator cannot read, at offset {self.at}"
        self.at = match.end()
        return match.group()

    def line(self) -> int:
        return bisect_right(self.breaks, self.at - 1) + 1


def _unescape(match: re.Match[str]) -> str:
    short, long, letter = match.groups()
    return _ESCAPED[letter] if letter else chr(int(short or long, 16))
