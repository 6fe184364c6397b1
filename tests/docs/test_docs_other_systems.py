"""What the page about other systems offers exists: each command with its options, each key, each variable."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from hpcps.cli import configgen
from hpcps.cli.main import parser
from hpcps.spec.keys import dotted_keys
from hpcps.spec.load import load_experiment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/other-systems.md").read_text(encoding="utf-8")
SYSTEMS = ("ps_pytorch and PyTorch-parameter-server", "BytePS", "ESync", "ZenoPS")
ELSEWHERE = {"mpirun", "make bench", "ssh", "qdel", "scancel", "Ctrl-C", "compression=", "hpcps", "--servers"}
"""What is no command of hpcps, or a part of one in the same cell."""


def offered():
    """Return each text in the last column of the tables with a column `hpcps`, in backticks."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        head, _, *rows = table.splitlines()
        if head.endswith("| hpcps |"):
            found += [span for row in rows for span in re.findall(r"`([^`]+)`", row.rpartition(" | ")[2])]
    return found


def fault(span, commands, keys, sources):
    """Return what is wrong with a text that the page offers; empty if it exists."""
    if span in ELSEWHERE or (ROOT / span).is_file():
        return ""
    if re.fullmatch(r"(BYTEPS|DMLC|HPCPS)_[A-Z_]+", span):
        return "" if span in sources else "no such variable"
    words = shlex.split(span)
    if words[0] in ("hpcps", "python") or words[:1] == ["qsub"]:
        name = words[1]
        if words[0] == "qsub":
            return "" if (ROOT / name).is_file() else "no such script"
        if name not in commands:
            return "no such command"
        end = next((place for place, word in enumerate(words) if place > 1 and word == "python"), len(words))
        unknown = [word for word in words[2:end] if word.startswith("-") and word not in options(commands[name])]
        files = [word for word in words[2:] if word.startswith("experiments/") and not (ROOT / word).is_file()]
        return f"no such option or file: {unknown + files}" if unknown + files else ""
    if re.fullmatch(r"[a-z_]+(\.[a-z_]+)* = .*|[a-z_]+(\.[a-z_]+)*", span):
        return "" if span.partition(" = ")[0] in keys else "no such key"
    if re.fullmatch(r"--[a-z-]+( [A-Za-z]+)?", span):
        return "" if any(span.split()[0] in options(command) for command in commands.values()) else "no such option"
    return "" if span == "results/NAME/runs/" else "neither a command, a key, a variable nor a file"


def options(command):
    return {option for action in command._actions for option in action.option_strings}


@pytest.fixture(scope="module")
def known():
    (subcommands,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    commands = {**subcommands.choices, "launcher/configgen.py": configgen.parser()}
    everything = list(dotted_keys())
    keys = {name for name, _ in everything} | {f"{name}.kind" for name, key in everything if key.tagged}
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "hpcps").rglob("*.py"))
    return commands, keys, sources


def test_each_system_has_its_tables():
    assert [name for name in SYSTEMS if f"\n## {name}\n" not in PAGE] == []
    assert PAGE.count("| hpcps |\n|---|---|\n") == 10


def test_commands_keys_and_variables_exist(known):
    spans = offered()
    assert len(spans) > 100
    assert {span: said for span in spans if (said := fault(span, *known))} == {}


@pytest.mark.parametrize(
    "span",
    [
        "hpcps submit FILE",
        "hpcps run FILE --no-such",
        "hpcps run experiments/none.toml",
        "python launcher/configgen.py FILE --dialects intel",
        "qsub launcher/pbs/none.sh",
        "train.learning_rate",
        "train.no_such = 1",
        "BYTEPS_NO_SUCH",
        "docker pull hpcps",
        "--no-such",
    ],
)
def test_the_check_finds_what_does_not_exist(known, span):
    assert fault(span, *known)


def test_commands_in_blocks_exist(known):
    blocks = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) > 3
    assert {line: said for line in lines if (said := fault(line, *known))} == {}


@pytest.mark.parametrize(
    "setting",
    [
        "communication.compression.kind=lossless", "train.local_steps.kind=esync", "data.split.kind=by_class",
        "train.optimizer.name=sgd", "transport.kind=pslite", "topology.evaluators=1", "fidelity=artifact",
    ],
)  # fmt: skip
def test_the_values_that_the_page_names_are_allowed(setting):
    key, _, value = setting.partition("=")
    assert re.search(rf"`{re.escape(key)} = \"?{value}\"?`", PAGE)
    assert load_experiment(ROOT / "experiments/quickstart.toml", [setting]).points
