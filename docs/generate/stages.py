"""Draw the stages of each role as SVG, and list what leads from one to the next."""

from __future__ import annotations

from html import escape

from hpcps.roles.stages import TABLES, Stage, StageTable

WIDTH, BOX, HEIGHT, GAP, TURN = 940, 210, 36, 30, 46


def tables() -> str:
    """Return Markdown: for each role the drawing, and its table."""
    return "\n\n".join(f"### {title}\n\n{_drawing(title, table)}\n\n{_table(table)}" for title, table in TABLES.items())


def _table(table: StageTable) -> str:
    rows = [
        f"| {number} | {_name(each.stage)} | {each.trigger.value} | {_name(each.next)} | {each.effects} |"
        for number, each in enumerate(table.transitions, 1)
    ]
    return "\n".join(["| | Stage | When | Next stage | The role |", "|---|---|---|---|---|", *rows])


def _name(stage: Stage | None) -> str:
    return "any" if stage is None else stage.name.lower().replace("_", " ")


def _drawing(title: str, table: StageTable) -> str:
    """Return the stages one below the other; a line to a later one is on the right, one to an earlier one on the left.

    Numbers are those of the table, whose lines of any stage are not drawn.
    """
    stages = [stage for stage in Stage if any(stage in (each.stage, each.next) for each in table.transitions)]
    order = {stage: number for number, stage in enumerate(stages)}
    left = (WIDTH - BOX) / 2
    parts: list[str] = []
    numbers: dict[tuple[Stage, Stage], list[str]] = {}
    for number, each in enumerate(table.transitions, 1):
        if each.stage is not None:
            numbers.setdefault((each.stage, each.next), []).append(str(number))
    for number, ((before, after), lines) in enumerate(numbers.items()):
        begin, end = order[before], order[after]
        side = 1 if end > begin else -1
        x = left + BOX if side > 0 else left
        # Lines that begin or end at one box do so at different heights.
        share = (number % 5 + 1) / 6
        y, v = begin * (HEIGHT + GAP) + HEIGHT * share, end * (HEIGHT + GAP) + HEIGHT * (1 - share)
        reach = side * TURN * (1 + abs(end - begin))
        at_x, at_y = x + 0.75 * reach, (y + v) / 2
        parts.append(
            f'<path d="M{x} {y:.0f}C{x + reach} {y:.0f} {x + reach} {v:.0f} {x} {v:.0f}" marker-end="url(#tip)"/>'
        )
        parts.append(f'<text class="number" x="{at_x:.0f}" y="{at_y + 4:.0f}">{", ".join(lines)}</text>')
    for stage, place in order.items():
        y = place * (HEIGHT + GAP)
        parts.append(f'<rect x="{left}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="6"/>')
        parts.append(f'<text x="{WIDTH / 2}" y="{y + HEIGHT / 2 + 5}">{_name(stage)}</text>')
    height = len(order) * (HEIGHT + GAP) - GAP
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    tip += '<path class="tip" d="M0 0L8 4L0 8z"/></marker>'
    return (
        f'<div class="packages stages"><svg viewBox="0 -4 {WIDTH} {height + 8}" role="img" '
        f'aria-label="{escape(title)}: the stages, with the numbers of the table"><defs>{tip}</defs>{"".join(parts)}'
        "</svg></div>"
    )
