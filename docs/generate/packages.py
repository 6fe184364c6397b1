"""Draw the packages of hpcps and their imports as SVG."""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

WIDTH, BOX, HEIGHT, GAP = 940, 132, 40, 74


def imports(root: Path) -> dict[str, set[str]]:
    """Return, for each package or module in a package, the others that it imports."""
    names = {path.stem if path.is_file() else path.name for path in root.iterdir() if _is_layer(path)}
    found: dict[str, set[str]] = {name: set() for name in names}
    for path in root.rglob("*.py"):
        layer = path.relative_to(root).parts[0].removesuffix(".py")
        if layer not in names:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            parts = [module.split(".") for module in modules]
            found[layer] |= {part[1] for part in parts if part[0] == root.name and len(part) > 1 and part[1] in names}
    return {name: others - {name} for name, others in found.items()}


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the fewest imports from which all others follow: the transitive reduction of an acyclic graph."""
    below = {name: reachable(graph, name) for name in graph}
    return {name: {o for o in others if not any(o in below[x] for x in others)} for name, others in graph.items()}


def reachable(graph: dict[str, set[str]], name: str) -> set[str]:
    """Return all that a package needs, directly or not."""
    return graph[name].union(*(reachable(graph, other) for other in graph[name]))


def drawing(root: Path) -> str:
    """Return the SVG: what imports is above what it imports; imports that follow from others are left out."""
    graph = reduced(imports(root))
    levels: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in levels:
            levels[name] = 1 + max(map(level, graph[name]), default=-1)
        return levels[name]

    rows: list[list[str]] = [[] for _ in range(1 + max(map(level, graph)))]
    for name in sorted(graph):
        rows[-1 - levels[name]].append(name)
    places = _places(rows, graph)
    lines = [
        f'<path data-import="{name} {other}" d="{_curve(places[name], places[other])}"/>'
        for name in sorted(graph)
        for other in sorted(graph[name])
    ]
    boxes = [
        f"<g><title>{escape(_summary(root, name))}</title>"
        f'<rect x="{x}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{x + BOX / 2}" y="{y + HEIGHT / 2 + 5}">{name}</text></g>'
        for name, (x, y) in places.items()
    ]
    height = len(rows) * (HEIGHT + GAP) - GAP + 4
    return (
        f'<div class="packages"><svg viewBox="-2 -2 {WIDTH + 4} {height + 2}" role="img" '
        f'aria-label="The packages of hpcps and their imports">{"".join(lines)}{"".join(boxes)}</svg></div>'
    )


def table(root: Path) -> str:
    """Return a Markdown table: each package, its purpose, and the packages that it imports."""
    graph = imports(root)
    rows = [f"| `{n}` | {_summary(root, n)} | {', '.join(f'`{o}`' for o in sorted(graph[n]))} |" for n in sorted(graph)]
    return "\n".join(["| Package | Purpose | Imports |", "|---|---|---|", *rows])


def _is_layer(path: Path) -> bool:
    return (path / "__init__.py").is_file() or (path.suffix == ".py" and path.stem not in ("__init__", "__main__"))


def _summary(root: Path, name: str) -> str:
    path = root / name / "__init__.py" if (root / name).is_dir() else root / f"{name}.py"
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def _places(rows: list[list[str]], graph: dict[str, set[str]]) -> dict[str, tuple[float, float]]:
    """Order each row by the mean position of what its boxes are connected to above."""
    places: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):

        def middle(name: str) -> float:
            above = [places[other][0] for other in places if name in graph[other]]
            return sum(above) / len(above) if above else WIDTH / 2

        step = WIDTH / len(row)
        # Rows of one box are not all in the middle, where a longer line would seem to end in them.
        shift = WIDTH / 5 if len(row) == 1 and number % 2 else 0
        for column, name in enumerate(sorted(row, key=lambda name: (middle(name), name))):
            places[name] = (round((column + 0.5) * step - BOX / 2 + shift, 1), number * (HEIGHT + GAP))
    return places


def _curve(above: tuple[float, float], below: tuple[float, float]) -> str:
    x, y, u, v = above[0] + BOX / 2, above[1] + HEIGHT, below[0] + BOX / 2, below[1]
    return f"M{x} {y}C{x} {y + GAP / 2} {u} {v - GAP / 2} {u} {v}"
