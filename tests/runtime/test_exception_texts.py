"""The text of exceptions: of any class, also of those whose own text cannot be made or encoded."""

import ast
import json
from pathlib import Path

import pytest

import hpcps
from hpcps.errors import HpcpsError, RunError, UnknownComponentError, message_of, text_of, trace_of
from hpcps.execution import evaluation_process
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.registry.plugins import PluginError, registry_of


class MuteError(Exception):
    """Raises an exception when it is turned into text."""

    def __str__(self):
        raise ValueError("no text")


class NumberError(Exception):
    """Gives a number for its text."""

    def __str__(self):
        return 3


class ExitingError(Exception):
    """Ends the process when it is turned into text."""

    def __str__(self):
        raise SystemExit(3)


LOOP = "class LoopError(Exception):\n    def __str__(self): return str(self)\n"
NO_TEXT = "its text cannot be made: its __str__() raised ValueError"
CASES = {
    "mute": (MuteError(), f"MuteError: {NO_TEXT}"),
    "number": (NumberError(), "NumberError: its text cannot be made: its __str__() raised TypeError"),
    "exits": (ExitingError(), "ExitingError: its text cannot be made: its __str__() raised SystemExit"),
    "surrogate": (FileNotFoundError(2, "none", "caf\udce9.txt"), r"FileNotFoundError: [Errno 2] none: 'caf\udce9.txt'"),
    "text with a surrogate": (KeyError("\udce9"), r"KeyError: '\udce9'"),
    "no text": (ValueError(), "ValueError"),
    "hpcps": (RunError("folder caf\udce9"), r"folder caf\udce9"),
    "component": (UnknownComponentError("no \ud800"), r"no \ud800"),
    "ordinary": (ValueError("3 ± 1 → 𝛼"), "ValueError: 3 ± 1 → 𝛼"),
}


@pytest.mark.parametrize(("error", "text"), CASES.values(), ids=CASES)
def test_any_exception_has_a_text(error, text):
    assert text_of(error) == text
    assert text_of(error).encode()
    assert message_of(error) in text
    assert trace_of(error).encode()


def test_an_endless_text_and_a_trace_that_cannot_be_made():
    found = {}
    exec(LOOP, found)
    assert text_of(found["LoopError"]()).endswith("raised RecursionError")
    broken = SyntaxError("x", ("file.py", 1, 1, 5))  # traceback expects a text in place of the 5
    assert "SyntaxError" in trace_of(broken)


def test_the_text_of_an_error_for_people_can_be_encoded():
    for kind in (HpcpsError, UnknownComponentError):
        assert str(kind("a \udce9")) == r"a \udce9"


@pytest.mark.parametrize("error", [MuteError(), OSError("caf\udce9")], ids=["mute", "surrogate"])
def test_a_failure_is_recorded_and_reported(error, tmp_path):
    run = RunDirectory(tmp_path)
    run.fail("worker", 1, "here", 3, "train", error)
    (failure,) = run.failures
    assert str(failure).encode()
    assert type(error).__name__ in failure.error
    assert type(error).__name__ in json.loads((tmp_path / "failure/worker-1.json").read_text())["traceback"]


def test_a_record_takes_any_text(tmp_path):
    with RecordWriter(tmp_path, "r", "worker", 0, "h") as record:
        record.write("end", error="caf\udce9", names=["\ud800"])
    (line,) = read_lines(tmp_path / "records/worker-0.jsonl").lines
    assert (line["error"], line["names"]) == ("caf\udce9", ["\ud800"])


def test_a_plugin_raises_what_cannot_be_said(tmp_path):
    text = "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute\n"
    with pytest.raises(PluginError, match=r"mute.py:3: Mute: its text cannot be made"):
        registry_of([("mute.py", text)], tmp_path)


class Wire:
    """The connection of a process that evaluates: it gets one run, and then ends."""

    def __init__(self):
        self.runs, self.sent = [object()], []

    def recv(self):
        if not self.runs:
            raise EOFError
        return self.runs.pop()

    def send(self, answer):
        self.sent.append(answer)


def test_the_process_that_evaluates_answers(monkeypatch):
    def fail(run):
        raise MuteError

    monkeypatch.setattr(evaluation_process, "planned_run", fail)
    wire = Wire()
    with pytest.raises(EOFError):
        evaluation_process.serve(wire)
    assert wire.sent[0][0] == f"MuteError: {NO_TEXT}"


ANY = {"Exception", "BaseException", "SystemExit"}
HPCPS = Path(hpcps.__file__).parent


def _formatted(scope, name):
    """Yield the lines of a handler or function that make a text of an exception without the functions of errors."""
    for node in ast.walk(scope):
        match node:
            case ast.FormattedValue(value=ast.Name(id=other)) if other == name:
                yield node.lineno
            case ast.Call(func=ast.Name(id="str" | "repr" | "format_exception"), args=[ast.Name(id=other)]) if (
                other == name
            ):
                yield node.lineno


def _of_any_class(tree):
    """Yield what may be an exception of any class: a handler or function, and the name of the exception in it."""
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(name=str(name), type=kinds):
                if ANY & {each.id for each in ast.walk(kinds) if isinstance(each, ast.Name)}:
                    yield node, name
            case ast.FunctionDef():
                for argument in (*node.args.args, *node.args.kwonlyargs):
                    named = ast.walk(argument.annotation) if argument.annotation else ()
                    if ANY & {each.id for each in named if isinstance(each, ast.Name)}:
                        yield node, argument.arg


@pytest.mark.thorough
def test_the_text_of_any_exception_is_made_by_the_one_function():
    found = {
        f"{path.relative_to(HPCPS)}:{line}"
        for path in sorted(HPCPS.rglob("*.py"))
        for scope, name in _of_any_class(ast.parse(path.read_text()))
        for line in _formatted(scope, name)
    }
    assert {place.partition(":")[0] for place in found} == {"errors.py"}
