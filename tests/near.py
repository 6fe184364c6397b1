"""Print the test files near a change, for `make quick`: `python tests/near.py [COMMIT]`.

The change is what differs from COMMIT, untracked files included (default: HEAD, or its parent if nothing differs).
A test file is near if it changed, if it imports a changed module of hpcps or of the tests, or if its folder is named
after the package of a changed module. Documentation is near tests/docs, and an experiment near the tests of files.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEAR = {"docs": "tests/docs", "experiments": "tests/spec", "examples": "tests/plugins"}
"""Tests of folders without modules."""


def changed(commit: str | None) -> list[Path]:
    """Return the changed files, relative to the root."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    untracked = git("ls-files", "--others", "--exclude-standard")
    names = git("diff", "--name-only", commit or "HEAD") + untracked
    if not names and commit is None:
        names = git("diff", "--name-only", "HEAD~1")
    return [Path(name) for name in names]


def imports(file: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports; `from a import b` may import the module a.b."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def module_of(path: Path) -> str:
    """Return the dotted name by which others import a file; a module of the tests has its file's name alone."""
    if path.parts[0] == "hpcps":
        return ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    return path.stem


def near(paths: list[Path]) -> list[Path]:
    """Return the test files near changed files."""
    tests = {file.relative_to(ROOT): set(imports(file)) for file in sorted((ROOT / "tests").rglob("*.py"))}
    names = {module_of(path) for path in paths if path.suffix == ".py"}
    # Modules of the tests that import a changed module count as changed themselves.
    while more := {module_of(file) for file, imported in tests.items() if imported & names} - names:
        names |= more
    found = {file for file, imported in tests.items() if imported & names or file in paths}
    for path in paths:
        folder = NEAR.get(path.parts[0]) or (f"tests/{path.parts[1]}" if path.parts[0] == "hpcps" else "")
        found |= {file for file in tests if folder and file.is_relative_to(folder)}
    return sorted(file for file in found if file.name.startswith("test_"))


if __name__ == "__main__":
    print(*near(changed(sys.argv[1] if len(sys.argv) > 1 else None)), sep="\n")
