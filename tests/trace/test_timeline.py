"""`hpcps run --trace` and `hpcps plot timeline`, for real."""

import json
from collections import Counter

import numpy as np
import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.figures.timeline import ONE_PROCESS, draw_timeline, whole_rounds
from hpcps.records.trace.reader import read_trace

SMALL = small_experiment("small", {"topology.servers": 2, "train.local_steps": 2})


def play(folder, *arguments, text=SMALL):
    (folder / "small.toml").write_text(text)
    return main(["run", str(folder / "small.toml"), "--results", str(folder), *arguments])


def traced(folder, *arguments, text=SMALL):
    assert play(folder, "--trace", *arguments, text=text) == 0
    (run,) = (folder / "small/runs").iterdir()
    return run, json.loads((run / "trace.json").read_text())


def check(run, trace):
    """Every process is without overlap, and every message that came is one that was sent, later."""
    spans = read_trace(run).spans
    for _, process in spans[~spans.background].groupby("process"):
        assert (process.start >= process.stop.shift(fill_value=-1e-6) - 1e-6).all()
    ends = {phase: [e for e in trace["traceEvents"] if e["ph"] == phase] for phase in "sf"}
    sent, came = ({event["id"]: event for event in ends[phase]} for phase in "sf")
    assert len(sent) == len(ends["s"])
    assert came
    assert came.keys() <= sent.keys()
    assert all(sent[key]["name"] == came[key]["name"] for key in came)
    assert all(sent[key]["ts"] <= came[key]["ts"] + 1.0 for key in came)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_in_process(tmp_path, capsys, mode):
    changes = () if mode == "sync" else ("--set", "train.mode=async", "--set", 'validation.rule={kind="zeno++"}')
    run, trace = traced(tmp_path, *changes)
    assert f"wrote {run}/trace.json: open it in ui.perfetto.dev" in capsys.readouterr().out
    check(run, trace)
    names = Counter(event["name"] for event in trace["traceEvents"] if event["ph"] == "X")
    assert {"train", "evaluate", "pack", "adopt", "combine", "send", "receive", "wait", "save"} <= names.keys()
    threads = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert threads == ["server-0", "server-1", "validator-0", "worker-0", "worker-1"]
    records = "".join((run / f"records/server-{s}.jsonl").read_text() for s in range(2)).splitlines()
    added = [line for line in map(json.loads, records) if line["event"] == "round" or line.get("kind") == "apply"]
    assert names["apply"] == len(added) > 0


def test_it_changes_nothing_of_the_run(tmp_path):
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    run, _ = traced(tmp_path / "with")
    assert play(tmp_path / "without") == 0
    (other,) = (tmp_path / "without/small/runs").iterdir()
    assert run.name == other.name
    assert not (other / "trace").exists()
    for shard in ("server-0", "server-1"):
        assert np.array_equal(np.load(run / f"final/{shard}.npy"), np.load(other / f"final/{shard}.npy"))


@pytest.mark.usefixtures("starts_processes")
def test_over_mpi_every_process_is_on_one_clock(tmp_path, capsys):
    """In every run of a launch."""
    text = SMALL + "[[sweep]]\nseed = [1, 2]\n"
    few = ("--set", "topology.servers=1", "--set", "topology.workers=1")
    assert play(tmp_path, "--trace", "--set", "transport.kind=mpi", *few, text=text) == 0
    for run in (tmp_path / "small/runs").iterdir():
        check(run, json.loads((run / "trace.json").read_text()))
    plans = list(tmp_path.glob("small/launch/*/*.plan.json"))
    assert [json.loads(plan.read_text())["trace"] for plan in plans] == [True]
    processes, spans = read_trace(run).processes, read_trace(run).spans
    beside = spans[spans.background]
    assert [*zip(beside.role, beside.activity, strict=True)] == [("validator", "evaluate")] * 2
    assert "evaluate" not in {*spans.activity[~spans.background]}
    assert main(["plot", "timeline", str(run), "--seconds", "0-99", "-o", str(tmp_path / "figures")]) == 0
    printed = capsys.readouterr().out
    assert ONE_PROCESS not in printed
    assert "| evaluate in background |" in printed
    assert {process.error for process in processes} == {0.0}
    assert max(process.began for process in processes) - min(process.began for process in processes) < 30


def test_a_simulation_is_traced_in_its_own_time(tmp_path):
    costs = 'simulation={kind="modelled", evaluate=0.125, step={kind="constant", seconds=0.25}}'
    run, trace = traced(tmp_path, "--set", costs)
    check(run, trace)
    assert {process.clock for process in read_trace(run).processes} == {"virtual"}
    spans = read_trace(run).spans
    assert [*spans.seconds[spans.background]] == pytest.approx([0.125] * 2, abs=1e-6)
    steps = [*spans.seconds[(spans.process == "worker-0") & (spans.activity == "train")]]
    assert steps == pytest.approx([0.5] * len(steps), abs=1e-6)


def test_a_simulation_without_costs_has_no_timeline(tmp_path, capsys):
    run, _ = traced(tmp_path, "--set", 'simulation={kind="modelled"}')
    assert 'warning: --set simulation={kind="modelled"}: simulation: all costs are zero' in capsys.readouterr().err
    assert main(["plot", "timeline", run.name, "--results", str(tmp_path)]) == 2
    assert "no simulated time passes in rounds " in capsys.readouterr().err


@pytest.mark.thorough
def test_the_figure(tmp_path, capsys):
    run, _ = traced(tmp_path)
    (run / "trace.json").unlink()
    capsys.readouterr()
    assert main(["plot", "timeline", run.name, "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "| workers |" in printed
    assert "note: one process executed the roles in turn" in printed
    assert (run / "trace.json").exists()
    assert sorted(path.name for path in (tmp_path / "small/figures").iterdir()) == [
        f"timeline-{run.name}.pdf", f"timeline-{run.name}.png",
    ]  # fmt: skip
    assert main(["plot", "timeline", str(run), "--rounds", "0-1", "-o", str(tmp_path / "elsewhere")]) == 0
    capsys.readouterr()
    assert main(["plot", "timeline", run.name, "--results", str(tmp_path), "--rounds", "900"]) == 2
    assert "has the rounds 0 to" in capsys.readouterr().err
    assert main(["plot", "timeline", run.name, "--results", str(tmp_path), "--seconds", "900-901"]) == 2
    assert "--seconds: the trace ends" in capsys.readouterr().err
    trace = read_trace(run)
    titles = [
        draw_timeline(trace, whole_rounds(trace), "small", in_process=turns)._suptitle.get_text()
        for turns in (True, False)
    ]
    assert [ONE_PROCESS in title for title in titles] == [True, False]
    last = trace.spans["round"][trace.spans.process == "worker-0"].max()
    assert whole_rounds(trace, 1, 900).title == f"rounds 1 to {last} of worker-0"


@pytest.mark.thorough
def test_which_run_is_meant(tmp_path, capsys):
    two = SMALL + '[[sweep]]\n"train.optimizer.lr" = [0.1, 0.2]\n'
    assert play(tmp_path, "--trace", "--only", "0", text=two) == 0
    assert play(tmp_path, text=two) == 0
    results = ["--results", str(tmp_path)]
    assert main(["plot", "timeline", str(tmp_path / "small"), *results]) == 0
    assert play(tmp_path, "--trace", text=two) == 0
    assert "--no-resume executes and traces them too" in capsys.readouterr().out
    assert play(tmp_path, "--trace", "--no-resume", text=two) == 0
    assert main(["plot", "timeline", str(tmp_path / "small"), *results]) == 2
    assert "use the id of one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["small", "--rounds", "1-2"], "are for `hpcps plot timeline WHAT`"),
        (
            ["small", "other"],
            "`timeline`, `participation` or `goodput` and one run; got small other",
        ),
        (["timeline", "small", "--set", "width=3"], "--style and --set are for the figures of an experiment"),
        (["timeline", "small"], "no run of small was traced: `hpcps run FILE --trace` does that"),
    ],
)
def test_what_cannot_be_drawn(tmp_path, capsys, arguments, said):
    (tmp_path / "small/runs").mkdir(parents=True)
    assert main(["plot", *arguments, "--results", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--rounds", "3-1"], ["--rounds", "x"], ["--seconds", "2-1"]])
def test_ranges_that_are_none(capsys, option):
    with pytest.raises(SystemExit):
        main(["plot", "timeline", "small", *option])
    assert "expects a" in capsys.readouterr().err
