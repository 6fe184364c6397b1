"""Whoever follows an update opens the files that CONTRIBUTING lists: they run, and no others matter."""

import re
import sys
from pathlib import Path

import pytest

import hpcps

ROOT = Path(hpcps.__file__).parents[1]
from toy_trainers import Quadratic, everyone, play, spec  # noqa: E402

from hpcps.numerics.layout import Layout  # noqa: E402

LAYOUT = Layout.of([("a", (6,)), ("b", (4,))])
BESIDE = {
    "hpcps/roles/adversary.py": "shows the update to the adversary, if there is one",
    "hpcps/roles/update/attacker.py": "what the attack does to a worker",
    "hpcps/roles/checkpointing.py": "checkpoints",
    "hpcps/roles/checks.py": "refuses bad messages",
    "hpcps/roles/evaluation.py": "evaluation",
    "hpcps/roles/evaluation_job.py": "evaluation",
    "hpcps/roles/update/choice.py": "whether the worker takes part, and which blocks it skips",
    "hpcps/roles/events.py": "names of events and effects",
    "hpcps/roles/local_steps.py": "how many steps there are",
    "hpcps/aggregation/rule_state.py": "what a rule keeps for its next round",
    "hpcps/aggregation/outcomes.py": "counts for the record",
    "hpcps/aggregation/encoding.py": "encodes and decodes the update, if there is a compressor",
    "hpcps/roles/messaging_role.py": "what roles that exchange messages have in common",
    "hpcps/roles/losses.py": "where replacements of lost workers begin; here there are none",
    "hpcps/roles/replacement.py": "a worker that replaces a lost one; here there is none",
    "hpcps/roles/stages.py": "the stages of roles, and what leads from one to the next",
    "hpcps/roles/sync/announcements.py": "what is said with a model: epochs, checkpoints, the end",
    "hpcps/roles/sync/readers.py": "who gets the models; all, without a quorum",
    "hpcps/roles/training_role.py": "what workers and validators have in common",
    "hpcps/rules/base.py": "what a rule declares; synchronous: the way of updates to it, and is listed",
    "hpcps/rules/context.py": "what a rule may use",
    "hpcps/rules/preaggregation.py": "what is done before a rule; here nothing",
    "hpcps/rules/stage.py": "how many updates a rule needs",
    "hpcps/roles/asynchronous/membership.py": "where each process is, for replacements; here nobody is lost",
    "hpcps/roles/weights.py": "how much updates count; here all alike",
    "hpcps/transport/base.py": "bytes for records",
}
"""Files that run but need not be opened, and why."""


def listed(mode):
    """Return the files that CONTRIBUTING lists for a mode, in order."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text[text.index("## Following an update") :].split("\n## ")[0]
    tables = section.split("|---|---|---|---|")[1:]
    table = tables[["sync", "async"].index(mode)].split("\n\n")[0]
    rows = re.findall(r"^\| \d+ \| `([^`]*)` \| ([^|]*) \|", table, re.MULTILINE)
    for file, named in rows:
        text = (ROOT / "hpcps" / file).read_text()
        for name in re.findall(r"[\w.]+(?=`)", named):
            assert re.search(rf"\b(def|class) {name.rpartition('.')[2]}\b", text), (file, name)
    return [f"hpcps/{file}" for file, _ in rows]


def executed(action):
    """Return the files of aggregation, roles, rules and transports of which a function runs."""
    found = set()

    def note(frame, event, argument):
        found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    inside = (Path(file) for file in found if file.startswith(str(ROOT / "hpcps")))
    names = {str(file.relative_to(ROOT)) for file in inside}
    return {name for name in names if name.split("/")[1] in ("aggregation", "roles", "rules", "transport")}


@pytest.mark.parametrize(("mode", "rule"), [("sync", "average"), ("async", "naive_async")])
def test_an_update_is_followed_in_few_files(tmp_path, mode, rule):
    run = spec(rule, workers=3, train={"mode": mode, "epochs": 2})
    trainers = {peer: Quadratic(LAYOUT, 8) for peer in everyone(run) if peer.role != "server"}
    ran = executed(lambda: play(tmp_path, run, trainers))
    files = listed(mode)
    assert 5 < len(set(files)) == len(files) <= 15
    # They run in one process here, whose transport stands for the default one.
    assert (ROOT / "hpcps/transport/mpi/transport.py").exists()
    files = ["hpcps/transport/inproc.py" if "/mpi/" in file else file for file in files]
    assert set(files) <= ran
    assert sorted(ran - set(files) - set(BESIDE)) == []
