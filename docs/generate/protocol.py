"""Write the table of the kinds of messages."""

from __future__ import annotations

import ast
from pathlib import Path


def kinds(root: Path) -> str:
    """Return a Markdown table of the members of `Kind` and their docstrings."""
    tree = ast.parse((root / "hpcps" / "protocol" / "messages.py").read_text(encoding="utf-8"))
    (kind,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Kind")
    rows = []
    for member, text in zip(kind.body, kind.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            rows.append(f"| `{ast.unparse(member.targets[0])}` | {' '.join(str(text.value.value).split())} |")
    return "\n".join(["| Kind | Meaning |", "|---|---|", *rows])
