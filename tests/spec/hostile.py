"""Values that nobody should write into an experiment file, and files that are nearly right."""

import json
import random
from collections.abc import Iterator
from typing import Any

from hpcps.spec.keys import Key, dotted_keys

VALUES = (
    "0", "-1", "1", "2", "-0.0", "0.5", "1e-320", "1e308", "inf", "-inf", "nan", "true", '""', '"0"', "'\\\\'", "[]",
    "{}", "[[]]", "[{}]", "[1, 2]", "[-1]", "[0.5, nan]", "{ kind = 1 }", '{ kind = "none" }', '{ kind = "zeno" }',
    "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", '"\\u0000"', '"../.."', '"\\n"', '"\U0001f600"', "9" * 19,
    str(2**31), str(2**63 - 1), str(2**63), str(2**64), "-" + str(2**63), "1" + "0" * 400, "1" * 5000,
    "0x" + "f" * 900, "0x" + "f" * 9000, '"' + "a" * 100_000 + '"', "[" * 20 + "]" * 20, "[" * 5000 + "]" * 5000,
    "{ a = " * 2000 + "1" + " }" * 2000, "[" * 5000, "[" + "1, " * 5000 + "]", "{ " + "a." * 5000 + "a = 1 }",
)  # fmt: skip
"""As in TOML."""

KEYS = sorted({name for name, _ in dotted_keys()} | {f"{name}.kind" for name, key in dotted_keys() if key.tagged})


def mutated(source: random.Random, content: bytes) -> bytes:
    """Return the content of a file with some of its bytes changed, missing, doubled, or swapped."""
    data = bytearray(content)
    for _ in range(source.choice((1, 1, 2, 4, 16))):
        at = source.randrange(len(data) + 1)
        end = at + source.choice((1, 1, 2, 8, 64))
        match source.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << source.randrange(8)
            case 1 if at < len(data):
                data[at] = source.choice(b'\0\n"[]{}=.,-09\xff')
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = source.choice((b"9" * 400, b"[" * 5000, b"1e999", b"null", b"{}", b"[]", b'"x"', b"-1"))
            case 4:
                data[at:at] = data[end : 2 * end - at]
            case 5:
                del data[at:]
            case 6:
                # A value in place of another: the structure stays.
                old = source.choice((b"0", b"1", b"true", b'"done"', b"2", b'"kind"', b'"zeno"', b"{", b"["))
                new = source.choice(
                    (b"1e400", b"-1", b"null", b"[[]]", b'{"a": 1}', b'"nan"', b"9" * 30, b'"x"', b"1.5")
                )
                places = [n for n in range(len(data)) if data[n : n + len(old)] == old]
                if places:
                    place = source.choice(places)
                    data[place : place + len(old)] = new
    return bytes(data)


WRONG: tuple[object, ...] = (
    None, True, -1, 0, 2**31, 2**63, 10**30, 10**400, 0.5, 1e308, float("inf"), float("nan"), "", "x", "nan", "²", "\0",
    [], [[]], [None], ["x"], {}, {"a": 1}, {"kind": []}, {"kind": "zeno"},
)  # fmt: skip


def wrong_value(source: random.Random, content: bytes) -> bytes:
    """Return a JSON text with one of its values, however deep, replaced by one of another sort."""
    whole = json.loads(content)
    places: list[tuple[Any, Any]] = []
    rest = [whole]
    for table in rest:
        inside = table.items() if isinstance(table, dict) else enumerate(table)
        for key, value in inside:
            places.append((table, key))
            rest += [value] if isinstance(value, (dict, list)) else []
    table, key = source.choice(places)
    table[key] = source.choice(WRONG)
    return json.dumps(whole).encode()


def wrong_lines(source: random.Random, content: bytes) -> bytes:
    """Return JSON lines with a wrong value in some of them."""
    lines = content.splitlines()
    for _ in range(source.choice((1, 2, 4))):
        place = source.randrange(len(lines))
        lines[place] = wrong_value(source, lines[place])
    return b"".join(line + b"\n" for line in lines)


def numbers(key: Key) -> Iterator[dict[str, object]]:
    """Yield the schemas of all numbers in a key's value."""
    schema = key.value
    while "items" in schema:
        schema = schema["items"]
    for choice in schema.get("anyOf", [schema]):
        if choice.get("type") in ("integer", "number"):
            yield choice
