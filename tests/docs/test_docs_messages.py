"""Every error text can be found in the documentation."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from generate.messages import GAP, messages

import hpcps.errors

ROOT = Path(__file__).parents[2]

known = cache(lambda: messages(ROOT))
"""Returns all messages of the sources."""
PAGE = (ROOT / "docs/how-to/troubleshoot.md").read_text(encoding="utf-8")


def found(text):
    return any(message.matches(" ".join(text.split())) for message in known())


@pytest.mark.thorough
def test_every_mistake_of_the_golden_file_is_found():
    lines = (ROOT / "tests/spec/golden/mistakes.txt").read_text(encoding="utf-8").splitlines()[1:]
    whole = re.split(r"\n  (?! )", "\n".join(["", *lines]))[1:]
    assert len(whole) > 25
    assert [text for text in whole if not found(text)] == []


def raised():
    """Yield the longest literal in each raise of our errors, and where; found apart from what makes the page."""
    ours = {name for name, value in vars(hpcps.errors).items() if isinstance(value, type)}
    for path in (ROOT / "hpcps").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ours:
                literals = [part.value for part in ast.walk(call) if isinstance(part, ast.Constant)]
                longest = max((text for text in literals if isinstance(text, str)), key=len, default="")
                yield " ".join(longest.split()), f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.thorough
def test_every_error_that_is_raised_with_a_text_is_listed():
    texts = [message.template for message in known()]
    whole = [(text, where) for text, where in raised() if len(re.findall(r"[A-Za-z]{2,}", text)) >= 4]
    assert len(whole) > 80
    assert [(text, where) for text, where in whole if not any(text in each for each in texts)] == []


def test_what_the_page_quotes_is_in_the_code():
    """So the page changes with the messages."""
    paths = [*ROOT.glob("hpcps/**/*.py"), *ROOT.glob("launcher/**/*.sh")]
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in paths))
    code = re.sub(r"\s+", " ", code).replace('\\"', '"')
    symptoms = re.findall(r"^\| (`[^|]*`) \|", PAGE, re.MULTILINE)
    assert len(symptoms) > 30
    parts = [part.strip(" `") for symptom in symptoms for part in symptom.split(GAP)]
    assert [part for part in parts if part and part not in code] == []
