"""A launch that somebody types, without `hpcps run`, prints its progress."""

import json
import shlex
import subprocess

from hpcps.cli.configgen import main as configgen
from hpcps.execution.launch_progress import LaunchProgress
from hpcps.launch.plan import Plan, PlannedRun

FILE = """
name = "typed"
topology.workers = 2
model.name = "mlp"
data = { name = "digits", limit = 160, test_limit = 50 }
train = { epochs = 1, batch_size = 16 }
[[sweep]]
"validation.rule.kind" = ["average", "median"]
"""


def test_mpirun_prints_each_run_that_is_done(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typed.toml").write_text(FILE)
    assert configgen(["typed.toml", "-o", "conf"]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == "hpcps: 2 runs to execute"
    assert [line.split()[:4] for line in lines] == [
        ["[1/2]", "average", "epoch", "1.0/1"],
        ["[2/2]", "median", "epoch", "1.0/1"],
    ]
    assert all("accuracy" in line for line in lines)


def test_a_current_run_is_shown_with_the_time_that_is_left(tmp_path, monkeypatch, capsys):
    for module in ("hpcps.execution.launch_progress", "hpcps.records.display"):
        monkeypatch.setattr(f"{module}.PLAIN_INTERVAL", -1.0)  # print at each line
    spec = {"run": {"train": {"epochs": 4}}}
    runs = tuple(PlannedRun(name, f"seed {name}", str(tmp_path / name), spec) for name in "12")
    progress = LaunchProgress(Plan((), runs))
    progress.begin()
    record = tmp_path / "1/records/validator-0.jsonl"
    record.parent.mkdir(parents=True)
    pairs = {"received_pairs": 40, "sent_pairs": 40}
    for line in (
        {"event": "round", "round": 0, "epoch": 0.5, "time": 10.0, "accepted_sent_pairs": 8, **pairs},
        {"event": "round", "round": 1, "epoch": 1.0, "time": 20.0, "accepted_sent_pairs": 12, **pairs},
        {"event": "evaluation", "round": 2, "epoch": 1.0, "time": 21.0, "accuracy": 0.5},
    ):
        written = json.dumps(line).encode() + b"\n"
        with record.open("ab") as file:
            file.write(written)
        progress.take(line["event"], written)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "      seed 1                    epoch   1.0/4  accuracy  50.0 %  accepted  25.0 %  0:00  about 2 min left"
    )
    progress.finish()
    progress.begin()
    progress.take("round", b'{"event": "round", "epoch": 0.5, "time": 10.0}\n')
    done, running = capsys.readouterr().out.splitlines()
    assert done.startswith("[1/2] seed 1")
    assert running.startswith("      seed 2                    epoch   0.5/4")
