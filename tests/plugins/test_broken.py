"""Whatever is wrong with a plugin file is one error with its file and line, and never a traceback."""

import os
import re
import resource
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np
import pytest
from installed import BACKEND
from running_processes import alive, within
from typed import hpcps

from hpcps.aggregation.rule_state import RuleState
from hpcps.cli.main import main
from hpcps.errors import SpecError
from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import Peer
from hpcps.registry.trial import trouble
from hpcps.roles.asynchronous.filter import UpdateFilter
from hpcps.roles.asynchronous.log import EntryKind, LogEntry
from hpcps.spec.load import load_experiment

HEAD = "from typing import Literal\nfrom pydantic import Field\nfrom hpcps.rules import Rule\n"
BODY = """class Mine(Rule):
    "Mine."
    kind: Literal["mine"] = "mine"
    def aggregate(self, updates, context):
        return updates[0]
"""
FILE = """name = "broken"
topology.workers = 2
model.name = "mlp"
data.name = "digits"
train.epochs = 1
"""
BROKEN = {
    "syntax": ("class Mine(Rule:\n", "mine.py:1: not valid Python: "),
    "null": ("x = 1\0\n", "mine.py:1: not valid Python: "),
    "import": ("import numpy\nimport nothing_of_this_name\n", "mine.py:2: ModuleNotFoundError: No module named"),
    "exception": ("def f():\n    return 1 / 0\nf()\n", "mine.py:2: ZeroDivisionError: division by zero"),
    "exit": ("import sys\nsys.exit(3)\n", "mine.py:2: SystemExit: 3"),
    "interrupt": ("x = 1\nraise KeyboardInterrupt\n", "mine.py:2: KeyboardInterrupt"),
    "base": (
        "class Own(BaseException): ...\ndef f():\n    raise Own('two\\nlines')\nf()\n",
        "mine.py:3: Own: two",
    ),
    "undescribed": (
        "class Own(BaseException):\n    def __str__(self):\n        raise self\nraise Own\n",
        "mine.py:4: it ends the process with status 1 when it is loaded: raise an exception instead",
    ),
    "silent": (
        "import os\nos.close(1)\nos.close(2)\n",
        "mine.py:1: OSError: it closes the file descriptor 1, which the command needs",
    ),
    "_exit": (
        "import os\ndef f():\n    os._exit(0)\nf()\n",
        "mine.py:3: it ends the process with status 0 when it is loaded: raise an exception instead",
    ),
    "crash": (
        "import os, signal\n\nos.kill(os.getpid(), signal.SIGSEGV)\n",
        "mine.py:3: loading it crashes the process with signal 11 (SIGSEGV)",
    ),
    "recursion": ("def f():\n    f()\nf()\n", "mine.py:2: RecursionError: "),
    "nothing": ("x = 1\n", "mine.py:1: it defines no component: derive a class from one of BaseRule, PreAggregator"),
    "hidden": (HEAD + BODY.replace("Mine", "_Mine"), "mine.py:1: it defines no component"),
    "docstring": (HEAD + BODY.replace('    "Mine."\n', ""), "mine.py:4: Mine is not a usable rule: it has no doc"),
    "kind": (
        HEAD + BODY.replace('    kind: Literal["mine"] = "mine"\n', ""),
        'mine.py:4: Mine is not a usable rule: it does not declare its name: add the line `kind: Literal["mine"]',
    ),
    "default of the kind": (
        HEAD + BODY.replace('= "mine"', '= "min"'),
        'mine.py:4: Mine is not a usable rule: its kind is Literal["mine"], and the default is "min": the default must',
    ),
    "default of a key": (
        HEAD + BODY.replace("    def", '    way: Literal["a", "b"] = Field("c", description="Way.")\n    def'),
        "mine.py:4: Mine is not a usable rule: the default of its key way is 'c': it must be one of \"a\", \"b\"",
    ),
    "description": (
        HEAD + BODY.replace("    def", "    radius: float = 1.0\n    def"),
        "mine.py:4: Mine is not a usable rule: its key radius has no description",
    ),
    "field": (
        HEAD + BODY.replace("    def", "    radius = Field(1.0)\n    def"),
        "mine.py:4: radius has no type: a key needs one, as in `radius: float = Field(…, description=\"…\")`, and "
        "another attribute of the class needs `radius: ClassVar[…] = …`",
    ),
    "property": (
        "from typing import Literal\nfrom hpcps.data.splits import Split\nclass Mine(Split):\n    'Mine.'\n"
        "    kind: Literal['mine'] = 'mine'\n    equal = False\n    def deal(self, dealing): ...\n",
        "mine.py:3: equal is a property of Split: define it as one, with `@property` and `def equal(self):`",
    ),
    "type": (
        "class Odd: pass\n" + HEAD + BODY.replace("    def", "    radius: Odd = 1\n    def"),
        "mine.py:5: no key can have the type Odd: use numbers, texts, lists or tables",
    ),
    "neighbour": ("import helper\n", "mine.py:1: it imports helper, a file beside it, which other hosts do not get"),
    "relative": ("from . import helper\n", "mine.py:1: it imports ., a file beside it, which other hosts do not get"),
    "abstract": (
        HEAD.replace("Rule", "AsyncRule") + BODY.replace("Rule", "AsyncRule").partition("    def")[0],
        "mine.py:4: Mine is not a usable rule: it does not define decide",
    ),
}  # fmt: skip


@pytest.mark.sample(10)
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_one_error(tmp_path, capfd, case):
    text, expected = BROKEN[case]
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "helper.py").write_text("")
    commands = ("check", "run", "components") if case == "exception" else ("check",)
    refused(capfd, tmp_path, '["mine.py"]', f"{tmp_path}/{expected}", commands)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "line"),
    [("def f():\n    while True:\n        pass\nf()\n", r"[23]"), ("import time\ntime.sleep(1e6)\n", "2")],
)
def test_a_plugin_that_never_ends_is_one_error(tmp_path, monkeypatch, text, line):
    monkeypatch.setattr("hpcps.registry.trial.LIMIT", 2.0)
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "experiment.toml").write_text(FILE + 'plugins = ["mine.py"]\n')
    began = time.monotonic()
    with pytest.raises(SpecError, match=rf"mine\.py:{line}: it is not loaded after 2 s: a plugin only defines classes"):
        load_experiment(tmp_path / "experiment.toml")
    assert time.monotonic() - began < 30


@pytest.mark.usefixtures("starts_processes")
def test_a_plugin_that_never_ends_ends_although_its_command_was_killed(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\nwith open('pid.part', 'w') as file:\n    file.write(str(os.getpid()))\n"
        "os.rename('pid.part', 'pid')\nwhile True:\n    pass\n"
    )
    (tmp_path / "experiment.toml").write_text(FILE + 'plugins = ["mine.py"]\n')
    code = "import hpcps.registry.trial as t; t.LIMIT = 2.0; from hpcps.cli.main import main; main()"
    command = subprocess.Popen([sys.executable, "-c", code, "check", "experiment.toml"], cwd=tmp_path)
    within(60, (tmp_path / "pid").exists, "the child")
    command.kill()
    command.wait()
    within(60, lambda: not alive((tmp_path / "pid").read_text()), "the end of the child")


def test_a_plugin_is_tried_once_for_each_text_and_leaves_no_process(tmp_path, capfd):
    marks = tmp_path / "marks"
    start = f"""import os, subprocess
child = subprocess.Popen(["sleep", "1000"])
print("loud", flush=True)
with open({str(marks)!r}, "a") as marks:
    marks.write(f"{{os.getpid()}} {{child.pid}}\\n")
if os.getpid() == {os.getpid()}:
    child.kill()
    child.wait()
"""
    (tmp_path / "mine.py").write_text(start + HEAD + BODY)
    (tmp_path / "experiment.toml").write_text(FILE + 'plugins = ["mine.py"]\n')
    load_experiment(tmp_path / "experiment.toml")
    assert capfd.readouterr().out == "loud\n", "what the trial prints is dropped"
    (trial, left), (own, _) = (map(int, line.split()) for line in marks.read_text().splitlines())
    assert own == os.getpid() != trial
    within(30, lambda: not alive(left), "the end of what the trial started")
    load_experiment(tmp_path / "experiment.toml")
    assert len(marks.read_text().splitlines()) == 2


def refused(capfd, folder, plugins, expected, commands=("check",)):
    file = folder / "experiment.toml"
    file.write_text(FILE + f"plugins = {plugins}\n")
    for command in commands:
        arguments = ["rules", "--file", str(file)] if command == "components" else [str(file)]
        assert main([command, *arguments]) == 2
        heading, mistake = capfd.readouterr().err.strip().split("\n", 1)
        assert heading == f"hpcps: {file}: 1 mistake"
        assert mistake.startswith(f"  {file}:6: plugins")
        assert f": {expected}" in mistake
        assert "pydantic" not in mistake.lower()
        assert not mistake.endswith(":")


def test_a_file_that_is_no_plugin_is_one_error(tmp_path, capfd):
    refused(capfd, tmp_path, '["mine.py"]', f"{tmp_path}/mine.py: there is no such file")
    (tmp_path / "mine.txt").write_text(HEAD + BODY)
    expected = f"{tmp_path}/mine.txt: a plugin is a Python file, whose name ends in .py"
    refused(capfd, tmp_path, '["mine.txt"]', expected)
    (tmp_path / "mine.py").mkdir()
    refused(capfd, tmp_path, '["mine.py"]', f"{tmp_path}/mine.py: cannot be read (Is a directory)")
    (tmp_path / "large.py").write_text(HEAD + BODY + "#" * (1 << 20))
    refused(capfd, tmp_path, '["large.py"]', f"{tmp_path}/large.py: ")
    (tmp_path / "latin.py").write_bytes(HEAD.encode() + b"# \xe9\n")
    refused(capfd, tmp_path, '["latin.py"]', f"{tmp_path}/latin.py:")


def test_names_that_clash_are_one_error(tmp_path, capfd):
    (tmp_path / "one.py").write_text(HEAD + BODY.replace("mine", "average"))
    expected = "one.py defines the rule 'average', which is also built in: choose another kind"
    refused(capfd, tmp_path, '["one.py"]', expected)
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(HEAD + BODY)
    expected = "two.py defines the rule 'mine', which is also plugin one.py: choose another kind"
    refused(capfd, tmp_path, '["one.py", "two.py"]', expected)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/one.py").write_text(HEAD + BODY.replace("mine", "other"))
    for other in ("inner/one.py", "one.py"):
        refused(capfd, tmp_path, f'["one.py", "{other}"]', "two plugins are called one.py: rename one")


MUTE = 'type("Mute", (Exception,), {"__str__": lambda error: None})'
"""A class of exceptions that cannot be turned into text."""
LATE = (
    BODY.replace("    def", '    needs = frozenset({"state"})\n    def')
    .replace("        return", '        context.state["n"] = context.state.get("n", 0) + 1\n        return')
    .replace("return updates[0]", 'if context.state["n"] < 2:\n            return updates[0]\n        BODY')
)
"""A rule that breaks in its second round, which no trial finds."""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return updates", r"line 9\): its aggregate\(\) returned an array \[2, \d+\] of float32: it must"),
        ('raise KeyError("w")', r"line 13\): its aggregate\(\) failed: KeyError: 'w'"),
        ("raise MUTE", r"line 13\): its aggregate\(\) failed: Mute: its text cannot be made: its __str__\(\) raised"),
    ],
)
def test_a_rule_that_breaks_its_promise_ends_the_run(tmp_path, body, expected):
    played = "import numpy as np\n" + HEAD + LATE.replace("BODY", body.replace("MUTE", MUTE))
    said = play(tmp_path, played, "inproc")
    assert re.search(rf"validator-0 on \S+ failed in round 1 .*: rule mine \(plugin mine\.py, .*{expected}", said), said


ATTACK = """from typing import Literal
from hpcps.attacks import Attack
class Mine(Attack):
    "Mine."
    kind: Literal["mine"] = "mine"
    def corrupt(self, block, context):
        if context.round:
            block += self.bye
"""


def test_an_attack_that_fails_in_the_middle_is_named_with_its_line(tmp_path):
    said = play(tmp_path, ATTACK, "inproc", 'attack = { kind = "mine", rate = 1.0 }\n', rule="average")
    failed = r"worker-\d on \S+ failed in round 1 .*: attack mine \(plugin mine\.py, line 8\): its corrupt\(\) failed"
    assert re.search(failed, said), said


DECIDES = (
    HEAD.replace("import Rule", "import AsyncRule, Decision")
    + """class Mine(AsyncRule):
    "Mine."
    kind: Literal["mine"] = "mine"
    def decide(self, update, context):
        update *= 0.5
        RETURN
"""
)
DECISIONS = {
    "pass": "line 7): its decide() returned None: it must return a hpcps.rules.Decision",
    "return context.sent": "line 7): its decide() returned an array [2] of bool: it must return a hpcps.rules.Decision",
    "return Decision.accept(context.sent[1:])": "line 7): its decide() returned a Decision whose applied is "
    "an array [1] of bool: it must be an array [2] of bool",
    "return Decision(context.sent, context.sent * 1.0)": "line 7): its decide() returned a Decision whose negated is "
    "an array [2] of float64: it must be an array [2] of bool",
    "return Decision(context.sent, None)": "line 7): its decide() returned a Decision whose negated is None: it",
    "return update[None, 'x']": "line 9): its decide() failed: IndexError: ",
}


@pytest.mark.parametrize("returned", DECISIONS)
def test_an_asynchronous_rule_that_breaks_its_promise_is_named_with_its_line(tmp_path, returned):
    (tmp_path / "mine.py").write_text(DECIDES.replace("RETURN", returned))
    file = tmp_path / "experiment.toml"
    file.write_text(FILE + 'train.mode = "async"\nplugins = ["mine.py"]\nvalidation.rule.kind = "mine"\n')
    (point,) = load_experiment(file).points
    layout = Layout.of([("a", (3,)), ("b", (2,))])
    rule = point.run.validation.rule
    decide = UpdateFilter(rule, layout, RuleState(rule, 1, Peer("validator", 0)))
    worker, mask, payload = Peer("worker", 0), np.ones(2, np.bool_), np.ones(5, np.float32)
    update = LogEntry(EntryKind.UPDATE, worker, 1, worker, 1, mask=mask, payload=payload)
    with pytest.raises(SpecError) as caught:
        decide(update, 1.0)
    assert str(caught.value).startswith(f"rule mine (plugin mine.py, {DECISIONS[returned]}")


def test_an_asynchronous_rule_that_decides_nothing_ends_the_run(tmp_path):
    late = "context.state['n'] = context.state.get('n', 0) + 1\n        if context.state['n'] < 2:\n            "
    text = DECIDES.replace("    def", '    needs = frozenset({"state"})\n    def')
    text = text.replace("RETURN", late + "return Decision.accept(context.sent)")
    said = play(tmp_path, text, "inproc", 'train.mode = "async"\n')
    assert re.search(r"validator-0 on \S+ failed in round \d+ .*: rule mine \(plugin mine\.py, line 8\)", said), said


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    ("error", "text"),
    [("SystemExit(0)", "SystemExit: 0"), pytest.param(MUTE, "Mute: its text cannot", marks=pytest.mark.soak)],
)
def test_a_rule_that_ends_its_process_ends_the_run_over_mpi(tmp_path, error, text):
    few = FILE.replace("workers = 2", "validators = 0\ntopology.workers = 1")
    said = play(tmp_path, HEAD + LATE.replace("BODY", f"raise {error}"), "mpi", experiment=few)
    assert re.search(rf"server-0 on \S+ failed in round 1, phase combine: .*{text}", said), said


def play(folder, plugin, transport, tables="", rule="mine", experiment=FILE):
    (folder / "mine.py").write_text(plugin)
    file = folder / "experiment.toml"
    file.write_text(
        experiment
        + f'plugins = ["mine.py"]\nvalidation.rule.kind = "{rule}"\ndata.limit = 200\nmodel.backend = "{BACKEND}"\n'
        + tables
        + f'transport = {{ kind = "{transport}", timeout = 20 }}\n'
    )
    return hpcps("run", file, "--results", folder, expect=1)


def test_a_plugin_is_tried_beside_many_open_files(tmp_path):
    """`select` supports only the first 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this user may not open 2,048 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    try:
        with ExitStack() as many:
            for _ in range(1200):
                many.enter_context(open(os.devnull))
            assert trouble(tmp_path / "mine.py", lambda: None) is None
            assert "status 3" in trouble(tmp_path / "mine.py", lambda: os._exit(3)).what
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
