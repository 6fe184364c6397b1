"""Write the table of the names of Horovod and BytePS that have no meaning in `hpcps.torch`."""

from __future__ import annotations


def table() -> str:
    """Return the Markdown table."""
    from hpcps.torch.compatibility import ABSENT  # here, because it imports torch

    lines = ["| Names | Of | Instead |", "|---|---|---|"]
    for row in ABSENT:
        lines.append(f"| {', '.join(f'`{name}`' for name in row.names)} | {row.library} | {row.instead} |")
    return "\n".join(lines)
