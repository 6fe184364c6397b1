"""The locator finds every key that tomllib reads, on the line where it stands."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpcps.spec.locate import line_of, locate

TEXT = '''\
# comment with [brackets] and "quotes
name = "a # b"   # comment
dotted.key = 1
"quoted.key".'lit"eral' = 2
"\\u0061\\tb" = 3

[table]
multi = """
line = 1 \\"""
""""
lit = \'\'\'
[not.a.table]
\'\'\'
when = 1979-05-27 07:32:00
list = [
    1, # one
    [2,
     3], { inline = { deep = [4] }, other = "]}" },
]
[ table . sub ]
x = {}

[[sweep]]
seed = [1, 2]
[sweep.train]
epochs = [
  1,
  2]
[[sweep]]
seed = [3]
[[sweep.inner]]
a = 1
[[sweep.inner]]
a = 2
'''


def test_each_key_of_an_awkward_file_is_on_its_line() -> None:
    lines = locate(TEXT)
    expected = {
        ("name",): 2,
        ("dotted", "key"): 3,
        ("quoted.key", 'lit"eral'): 4,
        ("a\tb",): 5,
        ("table",): 7,
        ("table", "multi"): 8,
        ("table", "lit"): 11,
        ("table", "when"): 14,
        ("table", "list", 0): 16,
        ("table", "list", 1): 17,
        ("table", "list", 1, 1): 18,
        ("table", "list", 2, "inline", "deep", 0): 18,
        ("table", "list", 2, "other"): 18,
        ("table", "sub", "x"): 21,
        ("sweep", 0, "seed", 1): 24,
        ("sweep", 0, "train"): 25,
        ("sweep", 0, "train", "epochs", 1): 28,
        ("sweep", 1): 29,
        ("sweep", 1, "seed"): 30,
        ("sweep", 1, "inner", 1, "a"): 34,
    }
    assert {path: lines.get(path) for path in expected} == expected
    assert set(lines) == _paths(tomllib.loads(TEXT))


def test_a_key_that_is_not_there_is_where_its_table_is() -> None:
    lines = locate(TEXT)
    assert line_of(lines, ("table", "sub", "nothing")) == 20
    assert line_of(lines, ("nowhere", "at", "all")) == 1


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    own = {path} if path else set()
    return own.union(*(_paths(inner, (*path, name)) for name, inner in items))


keys = st.text(st.sampled_from('ab-_. "#=[]{}\\\n\té'), max_size=4)
leaves = st.integers(0, 9) | st.booleans() | st.text(st.sampled_from('a"#]}\\\n'), max_size=4)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _write(value: Any, spread: bool) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(k)} = {_write(v, False)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        gap = "\n" if spread else " "
        return "[" + "".join(f"{gap}{_write(item, spread)}," for item in value) + "]"
    return _quoted(value) if isinstance(value, str) else str(value).lower()


@given(st.dictionaries(keys, st.tuples(values, st.booleans()), max_size=4))
def test_every_key_that_tomllib_reads_is_found(document: dict[str, tuple[Any, bool]]) -> None:
    text, starts = "", {}
    for key, (value, spread) in document.items():
        starts[key] = text.count("\n") + 1
        text += f"{_quoted(key)} = {_write(value, spread)}\n"
    lines = locate(text)
    assert set(lines) == _paths(tomllib.loads(text))
    assert {key: lines[(key,)] for key in document} == starts
