"""Write the tables of the messages: who sends each to whom, when, and what answers it."""

from __future__ import annotations

import dataclasses
import inspect
import re

from hpcps.protocol import messages
from hpcps.protocol.messages import Message

_TITLES = {
    "every_run": "In every run",
    "synchronous": "Synchronous rounds",
    "asynchronous": "Asynchronous runs",
    "collective": "Runs without servers",
    "session": "Own scripts",
}


def kinds() -> str:
    """Return Markdown: a table of messages for each module of `hpcps.protocol.messages`, from the classes."""
    parts = []
    for module, title in _TITLES.items():
        of_module = [each for each in Message.classes.values() if each.__module__ == f"{messages.__name__}.{module}"]
        rows = [_row(each) for each in sorted(of_module, key=lambda each: inspect.getsourcelines(each)[1])]
        head = "| Message | In traces | From | To | Meaning | Fields | Answer |\n|---|---|---|---|---|---|---|"
        parts.append(f"### {title}\n\n" + "\n".join([head, *rows]))
    return "\n\n".join(parts)


def _row(kind: type[Message]) -> str:
    text = inspect.cleandoc(str(kind.__doc__)).partition("\n\nAttributes:")[0]
    fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(kind))  # type: ignore[arg-type]
    answer = re.sub(r"[A-Z]\w+", lambda found: f"`{found[0]}`", kind.answer)
    cells = f"`{kind.__name__}`", f"`{kind.kind}`", kind.sender, kind.receiver, " ".join(text.split()), fields, answer
    return "| " + " | ".join(cells) + " |"
