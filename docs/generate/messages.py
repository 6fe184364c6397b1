"""Find the texts of all errors in the sources: a template for each, with … for what varies."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

GAP = "…"
PROBLEMS = {"Problem", "add_override", "add", "error", "fault", "broken", "_fault", "_rejected"}
"""Functions whose arguments are messages, besides the exceptions."""

NO_MESSAGES = {"hpcps.figures.final", "hpcps.spec.reference", "hpcps.cli.check"}
"""Modules whose functions return other texts than messages."""

PRINTERS = {"print", "write", "say", "on_output", "complain"}
"""Functions that print; what they print is a message if it has this many words."""

_FEWEST_WORDS = {"problem": 2, "print": 4, "reason": 5}
_LINE = re.compile(r"""(?:complain|echo) "((?:[^"\\]|\\.)*)"(?: \\\n\s+"((?:[^"\\]|\\.)*)")?""")


@dataclass(frozen=True, order=True)
class Message:
    """One text of an error.

    Attributes:
        template: the text, with `…` for each part that varies.
        module: the module that has it.
        kind: `problem` (an exception, or a mistake in a file), `print`, or `reason` (part of a message).
    """

    template: str
    module: str
    kind: str

    def matches(self, text: str) -> bool:
        """Whether a text, with single blanks between its words, contains this message."""
        end = 0
        for part in self.template.split(GAP):
            place = text.find(part.strip(), end)
            if place < 0:
                return False
            end = place + len(part.strip())
        return True


def messages(root: Path) -> list[Message]:
    """Return the messages of the package `hpcps` and of the job scripts in a repository, by module."""
    return sorted({*_of_python(root / "hpcps"), *_of_scripts(root)}, key=lambda each: (each.module, each.template))


def _of_scripts(root: Path) -> Iterator[Message]:
    for path in sorted(root.glob("launcher/**/*.sh")):
        for parts in _LINE.findall(path.read_text(encoding="utf-8")):
            template = re.sub(r"\$(\w+|\{[^}]*\}|\([^)]*\))", GAP, " ".join(part for part in parts if part))
            if _words(template) >= _FEWEST_WORDS["print"]:
                yield Message(template, str(path.relative_to(root)), "print")


def _words(text: str) -> int:
    return len(re.findall(r"[A-Za-z]{2,}", text))


def _of_python(root: Path) -> Iterator[Message]:
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for scope in _scopes(tree):
            for kind, call in _calls(scope):
                printed = "print" if kind in PRINTERS else "problem"
                for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
                    yield from _templates(argument, scope, tree, module, printed)
            for value in () if module in NO_MESSAGES else _reasons(scope):
                yield from _templates(value, scope, tree, module, "reason")


def _templates(node: ast.AST, scope: ast.AST, tree: ast.Module, module: str, kind: str) -> Iterator[Message]:
    for text in _texts(node, scope, tree):
        template = re.sub(rf"{GAP}+", GAP, " ".join(text.split()))
        if _words(template) >= _FEWEST_WORDS[kind] and not template.startswith("{"):
            yield Message(template, module, kind)


def _reasons(scope: ast.AST) -> Iterator[ast.expr]:
    """Yield what a function returns, yields or appends to a list: a reason that another function completes."""
    for node in ast.walk(scope):
        if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
            yield node.value
        elif isinstance(node, ast.Call) and _name(node.func) == "append":
            yield from node.args


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    yield from (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda)))


def _calls(scope: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls that take a message."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield _name(node.exc.func), node.exc
        elif isinstance(node, ast.Call) and (
            _name(node.func) in PROBLEMS | PRINTERS or _name(node.func).endswith("Error")
        ):
            yield _name(node.func), node


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _texts(node: ast.AST, scope: ast.AST, module: ast.Module, depth: int = 5) -> list[str]:
    """Return the texts that an expression can have; `…` stands for what is not a text in the source."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else [GAP]
    if depth == 0:
        return [GAP]
    if isinstance(node, ast.JoinedStr):
        whole = "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
        inner = [each for part in node.values if isinstance(part, ast.FormattedValue) for each in ast.walk(part.value)]
        inside = [each.value for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        return [whole, *(text for text in inside if _words(text) >= _FEWEST_WORDS["print"])]
    if isinstance(node, ast.FormattedValue):
        return [GAP]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        ends = _texts(node.right, scope, module, depth - 1)
        return [begin + end for begin in _texts(node.left, scope, module, depth - 1) for end in ends]
    if isinstance(node, ast.IfExp):
        return _texts(node.body, scope, module, depth - 1) + _texts(node.orelse, scope, module, depth - 1)
    if isinstance(node, (ast.List, ast.Tuple, ast.BoolOp)):
        parts = node.values if isinstance(node, ast.BoolOp) else node.elts
        return [text for part in parts for text in _texts(part, scope, module, depth - 1)] or [GAP]
    if isinstance(node, ast.Name):
        values = [
            each.value
            for each in ast.walk(scope)
            if isinstance(each, (ast.Assign, ast.AnnAssign))
            and each.value is not None
            and any(_name(target) == node.id for target in getattr(each, "targets", [getattr(each, "target", None)]))
        ]
        return [text for value in values for text in _texts(value, scope, module, depth - 1)] or [GAP]
    if isinstance(node, ast.Call):
        found = [text for argument in node.args for text in _texts(argument, scope, module, depth - 1)]
        for function in module.body:
            if isinstance(function, ast.FunctionDef) and function.name == _name(node.func):
                returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return) and each.value]
                found += [text for value in returned for text in _texts(value, function, module, depth - 1)]
        return found or [GAP]
    return [GAP]


def _breakable(module: str) -> str:
    """Return a module as HTML that breaks after its dots only."""
    return f'<code style="overflow-wrap: normal">{module.replace(".", ".<wbr>")}</code>'


def reference(root: Path) -> str:
    """Return the Markdown page part: a table of messages for each package."""
    groups: dict[str, list[Message]] = {}
    for message in messages(root):
        name = ".".join(message.module.split(".")[:2]) if "/" not in message.module else "launcher/"
        groups.setdefault(name, []).append(message)
    parts = []
    for name, found in groups.items():
        homes: dict[str, list[str]] = {}
        for each in found:
            homes.setdefault(each.template, []).append(each.module)
        rows = [
            f"<tr><td>{escape(template)}</td><td>{_breakable(modules[0])}"
            f"{f' and {len(modules) - 1} more' if modules[1:] else ''}</td></tr>"
            for template, modules in homes.items()
        ]
        head = "<thead><tr><th>Message</th><th>Made in</th></tr></thead>"
        parts.append(f"## `{name}`\n\n<table>{head}<tbody>{''.join(rows)}</tbody></table>")
    return "\n\n".join(parts)
