"""The reference of the records names every field that runs write."""

import re
from pathlib import Path

from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.records.collect import EVENTS
from hpcps.records.files import read_lines

ROOT = Path(__file__).parents[2]

TABLES = """
[[sweep]]
"train.mode" = ["sync", "async"]
"validation.rule" = [{ kind = "zeno" }, { kind = "zeno++" }]
[[include]]
label = "alone"
topology = { servers = 0, validators = 1, workers = 0, evaluators = 0 }
data.shards = 3
[[include]]
label = "policy"
train.local_steps = { kind = "esync" }
simulation = { kind = "modelled" }
"""


def test_the_events_are_those_that_roles_record():
    sources = "".join(
        path.read_text() for part in ("roles", "execution") for path in (ROOT / "hpcps" / part).rglob("*.py")
    )
    recorded = set(re.findall(r"(?:Record|\.write|\.record)\(\s*\"(\w+)\"", sources))
    assert {"lost", "excluded", "round"} <= recorded
    assert recorded - set(EVENTS) == set()


def test_every_event_and_field_is_described(tmp_path):
    page = (ROOT / "docs/reference/records.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`(\w+)`", page))
    assert [event for event in EVENTS if event != "updates" and event not in described] == []
    (tmp_path / "fields.toml").write_text(
        small_experiment("fields", {"topology.servers": 2, "topology.evaluators": 1, "checkpoint.every": 1}, TABLES)
    )
    assert main(["run", str(tmp_path / "fields.toml"), "--results", str(tmp_path)]) == 0
    records = list(tmp_path.glob("fields/runs/*/records/*.jsonl"))
    fields = {name for record in records for line in read_lines(record).lines for name in line}
    assert len(fields) > 50
    assert fields - described == set()
