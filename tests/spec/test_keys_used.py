"""Every key of an experiment file is read by the code: none is parsed and then ignored."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcps
from hpcps.spec.keys import Table, dotted_keys
from hpcps.spec.search import search_table

ROOT = Path(hpcps.__file__).parent

# These read keys of all kinds, to check, name or hash them.
APART = ("spec/checks/", "spec/identity.py", "spec/label.py", "spec/keys.py", "spec/reference.py", "cli/check.py")


OTHERWISE = {"fidelity"}
"""`presets` reads it from the table of the file."""


def reads(tree: ast.AST) -> Iterator[str]:
    """Yield the names of the attributes that a module reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr


def unread(table: Table | None = None) -> set[str]:
    files = [path for path in ROOT.rglob("*.py") if not str(path.relative_to(ROOT)).startswith(APART)]
    known = {name for path in files for name in reads(ast.parse(path.read_text()))}
    return {name for name, _ in dotted_keys(table) if name.rpartition(".")[2] not in known}


@pytest.mark.thorough
def test_every_key_is_read() -> None:
    assert unread() == OTHERWISE
    assert unread(search_table()) == set()
