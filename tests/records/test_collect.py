import json
import math

import numpy as np
import pandas as pd
import pytest

from hpcps.errors import RunError
from hpcps.records.collect import collect, settings_of_run
from hpcps.records.run_directory import RunDirectory
from hpcps.records.table import read_table, write_table
from hpcps.spec.point import Point
from hpcps.spec.schema import Run

ZENO, AVERAGE = {"kind": "zeno", "rho": -0.001}, {"kind": "average"}
NEGATIVE, NONE = {"kind": "negative", "scale": 6.0, "rate": 0.2}, {"kind": "none"}


def write_run(results, index, rule, attack, files, done=True, seed=1, **train):
    """Write a run folder by hand: `files` maps a record file's stem to its lines (dicts, or raw text)."""
    run_id = f"{index:010x}"
    folder = results / "runs" / run_id
    (folder / "records").mkdir(parents=True)
    run = {
        "name": results.name, "seed": seed, "fidelity": "corrected", "topology": {"validators": 1, "workers": 2},
        "train": {"epochs": 2, "lr": 0.1, **train}, "validation": {"rule": rule}, "attack": attack,
    }  # fmt: skip
    spec = {"run_id": run_id, "label": f"{rule['kind']} · {attack['kind']}", "index": index, "run": run}
    spec["swept"] = {"validation.rule": rule, "attack": attack}
    (folder / "spec.json").write_text(json.dumps(spec))
    for stem, lines in files.items():
        role, _, number = stem.rpartition("-")
        common = {"run": run_id, "role": role, "index": int(number), "host": f"n{number}"}
        text = [line if isinstance(line, str) else json.dumps({**common, **line}) + "\n" for line in lines]
        (folder / "records" / f"{stem}.jsonl").write_text("".join(text))
    if done:
        (folder / "DONE").write_text("{}")


def rounds(*rows):
    """Lines of rounds 0, 1, …: (bytes sent, CPU seconds) each."""
    return [
        {"event": "round", "round": r, "step": 4 * r + 4, "time": r + 0.5, "bytes_sent": sent, "cpu": cpu}
        for r, (sent, cpu) in enumerate(rows)
    ]


def evaluation(round, epoch, accuracy, **fields):
    common = {"event": "evaluation", "round": round, "epoch": epoch, "time": 10.0 * epoch}
    return {**common, "step": 4 * round, "accuracy": accuracy, "loss": 1.5, **fields}


THREE_ROUNDS = {
    "worker-0": rounds((100, 1.0), (200, 2.0), (400, 4.0)),
    "worker-1": rounds((10, 0.5), (20, 0.5), (40, 0.5)),
    "server-0": rounds((1000, 0.25), (2000, 0.25), (4000, 0.25)),
    # Epoch 1 is evaluated on the model that rounds 0 and 1 made, epoch 2 on that of all three.
    "validator-0": [
        *rounds((1, 1.0), (2, 1.0)), evaluation(2, 1, 0.5),
        *rounds((0, 0), (0, 0), (4, 1.0))[2:], evaluation(3, 2, 0.75), {"event": "end", "round": 3},
    ],
}  # fmt: skip


def test_totals_are_those_of_all_roles_before_the_evaluated_model(tmp_path):
    write_run(tmp_path / "x", 0, ZENO, NEGATIVE, THREE_ROUNDS)
    table = collect(tmp_path / "x").table
    first, second = table[table["event"] == "evaluation"].to_dict("records")
    assert first["bytes_sent_total"] == 100 + 200 + 10 + 20 + 1000 + 2000 + 1 + 2
    assert second["bytes_sent_total"] == 700 + 70 + 7000 + 7
    assert first["cpu_seconds_total"] == 1 + 2 + 0.5 + 0.5 + 0.25 + 0.25 + 1 + 1
    assert second["cpu_seconds_total"] == 7 + 1.5 + 0.75 + 3
    assert (first["wall"], second["wall"]) == (10.0, 20.0)
    assert (first["diverged"], second["diverged"]) == (0, 0)
    others = table[table["event"] != "evaluation"]
    assert others[["wall", "bytes_sent_total", "cpu_seconds_total", "diverged"]].isna().all(axis=None)


def test_a_text_in_place_of_a_number_is_left_out(tmp_path):
    files = {**THREE_ROUNDS, "worker-0": [{**THREE_ROUNDS["worker-0"][0], "cpu": "much", "bytes_sent": 10**40}]}
    write_run(tmp_path / "x", 0, ZENO, NEGATIVE, files)
    table = collect(tmp_path / "x").table
    assert table.loc[table["role"] == "worker", ["cpu", "bytes_sent"]].isna().all(axis=1).sum() == 1
    assert table["bytes_sent_total"].max() == 70 + 7000 + 7


def test_every_row_says_what_ran_and_text_is_categories(tmp_path):
    write_run(tmp_path / "x", 0, ZENO, NEGATIVE, THREE_ROUNDS)
    write_run(tmp_path / "x", 1, AVERAGE, NONE, THREE_ROUNDS, seed=7)
    collected = collect(tmp_path / "x")
    table = collected.table
    assert len(table[table["event"] != "totals"]) == 2 * 15
    assert table.attrs == {"experiment": "x", "baseline": None, "swept": ["rule", "attack"], "outside": {}}
    runs = table.drop_duplicates("run_id").set_index("run_id")
    assert list(runs["rule"]) == ["zeno", "average"]
    assert list(runs["attack"]) == ["negative 6", "none"]
    assert list(runs["attack_kind"]) == ["negative", "none"]
    assert runs["attack_scale"].iloc[0] == 6
    assert math.isnan(runs["attack_scale"].iloc[1])
    assert list(runs["seed"]) == [1, 7]
    assert list(runs["status"]) == ["done", "done"]
    assert list(runs["workers"]) == [2, 2]
    for name in ("run_id", "label", "experiment", "rule", "attack", "event", "role", "host", "status"):
        assert isinstance(table[name].dtype, pd.CategoricalDtype), name
    assert [run.lines for run in collected.runs] == [15, 15]


def test_swept_numbers_stay_numbers_and_tables_of_a_kind_are_told_apart(tmp_path):
    for index, rho in enumerate((-0.1, 0.01)):
        write_run(tmp_path / "x", index, {"kind": "zeno", "rho": rho}, NONE, THREE_ROUNDS)
    for path in (tmp_path / "x").glob("runs/*/spec.json"):
        spec = json.loads(path.read_text())
        spec["swept"] = {"validation.rule.rho": spec["run"]["validation"]["rule"]["rho"], "seed": 1}
        path.write_text(json.dumps(spec))
    table = collect(tmp_path / "x").table
    assert table.attrs["swept"] == ["validation.rule.rho", "seed"]
    assert list(table["validation.rule.rho"].unique()) == [-0.1, 0.01]
    assert len(table["rule"].unique()) == 2


def test_torn_and_corrupt_lines_are_counted_and_left_out(tmp_path):
    files = dict(THREE_ROUNDS)
    files["worker-0"] = [*THREE_ROUNDS["worker-0"][:2], "\x00\x00 what\n", "[1, 2]\n", '{"event": "round", "rou']
    write_run(tmp_path / "x", 0, ZENO, NEGATIVE, files)
    (tmp_path / "x" / "runs" / "0000000000" / "records" / "worker-9.jsonl").mkdir()
    (run,) = collect(tmp_path / "x").runs
    assert (run.damaged, run.lines) == (3, 14)
    assert run.unreadable == ("worker-9.jsonl: Is a directory",)


def test_only_the_last_attempt_counts(tmp_path):
    start = {"event": "start", "attempt": 2}
    files = {
        "worker-0": [{"event": "start", "attempt": 1}, *rounds((5, 5), (5, 5)), start, *THREE_ROUNDS["worker-0"]],
        "server-0": [start, *THREE_ROUNDS["server-0"]],
        "validator-0": [start, *THREE_ROUNDS["validator-0"]],
        # This one did not live to see the second attempt.
        "worker-1": [{"event": "start", "attempt": 1}, *rounds((7, 7))],
    }
    write_run(tmp_path / "x", 0, ZENO, NEGATIVE, files, done=False)
    collected = collect(tmp_path / "x")
    (run,) = collected.runs
    assert run.superseded == 3 + 2
    assert collected.table["bytes_sent_total"].max() == 7000 + 700 + 7


def test_unfinished_runs_are_in_with_their_state(tmp_path):
    write_run(tmp_path / "x", 0, ZENO, NONE, THREE_ROUNDS)
    write_run(tmp_path / "x", 1, AVERAGE, NONE, {"worker-0": rounds((1, 1))}, done=False)
    write_run(tmp_path / "x", 2, ZENO, NEGATIVE, {"worker-0": rounds((1, 1))}, done=False)
    write_run(tmp_path / "x", 3, AVERAGE, NEGATIVE, {}, done=False)
    failure = tmp_path / "x" / "runs" / "0000000002" / "failure"
    failure.mkdir()
    (failure / "worker-0.json").write_text(json.dumps({"time": 1.0, "role": "worker", "index": 0, "error": "no"}))
    collected = collect(tmp_path / "x")
    assert [run.status for run in collected.runs] == ["done", "running", "failed", "not started"]
    assert list(collected.table.drop_duplicates("run_id")["status"]) == ["done", "running", "failed"]


def test_a_diverged_model_is_marked_from_where_it_is_the_one_evaluated(tmp_path):
    def marks(index, file, round):
        files = {**THREE_ROUNDS, file: [*THREE_ROUNDS[file], {"event": "diverged", "round": round}]}
        write_run(tmp_path / str(index), 0, ZENO, NEGATIVE, files)
        table = collect(tmp_path / str(index)).table
        return list(table.loc[table["event"] == "evaluation", "diverged"])

    assert marks(0, "validator-0", 2) == [1, 1]
    assert marks(1, "validator-0", 3) == [0, 1]
    assert marks(2, "server-0", 1) == [1, 1]
    assert marks(3, "server-0", 2) == [0, 1]


def test_numbers_that_are_not_finite_come_back(tmp_path):
    files = {**THREE_ROUNDS, "validator-0": [evaluation(3, 1, 0.1, loss="inf"), evaluation(3, 2, 0.1, loss="nan")]}
    write_run(tmp_path / "x", 0, ZENO, NEGATIVE, files)
    table = collect(tmp_path / "x").table
    losses = table.loc[table["event"] == "evaluation", "loss"].to_numpy(np.float64)
    assert losses[0] == math.inf
    assert math.isnan(losses[1])


def test_fields_of_any_kind_find_a_column(tmp_path):
    odd = [
        {"event": "start", "round": 0, "threads": 1, "checksums": {"final/server-0": "ab"}, "rule": "mine", "odd": 1},
        {"event": "round", "round": 0, "participated": True, "absent": [3, 5], "odd": "text"},
        {"event": "round", "round": 1, "participated": False, "absent": [], "bytes_sent": 2**40, "odd": None},
    ]
    write_run(tmp_path / "x", 0, ZENO, NONE, {"worker-0": odd})
    write_run(tmp_path / "x", 1, ZENO, NEGATIVE, {"worker-0": [{"event": "start", "odd": 2.5, "threads": 0.5}]})
    table = collect(tmp_path / "x").table
    assert list(table["participated"][1:3]) == [1, 0]
    assert list(table["absent"][1:3]) == [2, 0]
    assert table["bytes_sent"][2] == 2**40
    assert list(table["odd"].astype(object).where(table["odd"].notna(), None)) == ["1", "text", None, "2.5"]
    assert list(table["threads"].dropna()) == [1, 0.5]
    assert table["checksums.final/server-0"][0] == "ab"
    assert set(table["rule"]) == {"zeno"}


def test_parquet_gives_back_what_was_written(tmp_path):
    write_run(tmp_path / "x", 0, ZENO, NEGATIVE, THREE_ROUNDS)
    write_run(tmp_path / "x", 1, AVERAGE, NONE, {"worker-0": rounds((1, 1))}, done=False)
    table = collect(tmp_path / "x").table
    write_table(table, tmp_path / "x" / "table.parquet")
    again = read_table(tmp_path / "x" / "table.parquet")
    pd.testing.assert_frame_equal(again, table, check_categorical=False)
    assert again.attrs == table.attrs
    # The same through plain pandas, as the notebooks read it.
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "x" / "table.parquet"), table, check_categorical=False)
    assert not list((tmp_path / "x").glob(".*"))


def test_chosen_events_keep_their_totals(tmp_path):
    write_run(tmp_path / "x", 0, ZENO, NEGATIVE, THREE_ROUNDS)
    table = collect(tmp_path / "x", events=("evaluation", "end")).table
    assert list(table["event"]) == ["evaluation", "evaluation", "end"]
    assert table["bytes_sent_total"].max() == 7777


def test_what_is_no_table_is_said(tmp_path):
    with pytest.raises(RunError, match=r"no table .*absent\.parquet: make it with `hpcps collect`"):
        read_table(tmp_path / "absent.parquet")
    (tmp_path / "text.parquet").write_text("not parquet")
    with pytest.raises(RunError, match="is not a Parquet table"):
        read_table(tmp_path / "text.parquet")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(RunError, match="is not a table of `hpcps collect`"):
        read_table(tmp_path / "other.parquet")


def test_no_runs_is_said(tmp_path):
    with pytest.raises(RunError, match="no runs in"):
        collect(tmp_path)
    (tmp_path / "runs" / "0000000000").mkdir(parents=True)
    (tmp_path / "runs" / "0000000000" / "spec.json").write_text('{"torn')
    with pytest.raises(RunError, match="no runs in"):
        collect(tmp_path)


def specs(results):
    return [json.loads(path.read_text()) for path in sorted(results.glob("runs/*/spec.json"))]


def test_what_is_not_in_the_experiment_file_makes_a_variant(tmp_path):
    write_run(tmp_path / "file", 0, ZENO, NEGATIVE, {})
    write_run(tmp_path / "file", 1, AVERAGE, NEGATIVE, {}, momentum=0.9)
    points = specs(tmp_path / "file")
    here = tmp_path / "x"
    write_run(here, 0, ZENO, NEGATIVE, THREE_ROUNDS, seed=5)
    write_run(here, 1, AVERAGE, NEGATIVE, THREE_ROUNDS, momentum=0.9)
    write_run(here, 2, ZENO, NEGATIVE, THREE_ROUNDS, epochs=1, lr=0.05)
    write_run(here, 3, AVERAGE, NEGATIVE, THREE_ROUNDS)
    runs = collect(here, points).table.drop_duplicates("run_id")
    # Point 1 itself has momentum 0.9: a run like it is as in the file. Without it, run 3 lacks a key and adds none.
    assert list(runs["variant"]) == ["", "", "train.epochs=1 train.lr=0.05", ""]


def test_without_a_file_runs_are_compared_with_one_another(tmp_path):
    write_run(tmp_path / "x", 0, ZENO, NEGATIVE, THREE_ROUNDS)
    write_run(tmp_path / "x", 1, AVERAGE, NEGATIVE, THREE_ROUNDS, epochs=1)
    runs = collect(tmp_path / "x").table.drop_duplicates("run_id")
    assert list(runs["variant"]) == ["train.epochs=2", "train.epochs=1"]


def test_runs_from_before_a_revision_that_concerns_them_are_a_variant(tmp_path):
    before, since, untouched = (
        Run.model_validate(
            {
                "name": "x",
                "topology": {"workers": 2},
                "model": {"name": "mlp"},
                "data": {"name": "digits"},
                "train": {"epochs": 2, "first_step": "overwritten"},
                "validation": {"rule": rule},
            }
        )
        for rule in (AVERAGE, AVERAGE, ZENO)
    )
    for index, run in enumerate((before, since, untouched)):
        rule = run.validation.rule.kind
        write_run(tmp_path / "x", index, {"kind": rule}, NONE, THREE_ROUNDS)
        spec = Point(index, run, f"{index:010x}", rule, {"validation.rule": {"kind": rule}}).spec
        if run is before:
            del spec["revisions"]
        (tmp_path / "x" / "runs" / f"{index:010x}" / "spec.json").write_text(json.dumps(spec))
    runs = collect(tmp_path / "x").table.drop_duplicates("run_id")
    assert list(runs["variant"]) == ["before=first-step", "", ""]


def test_runs_that_have_recorded_nothing_are_no_table(tmp_path):
    RunDirectory(tmp_path / "runs/a").create({"run_id": "a", "run": {"name": "e"}})
    with pytest.raises(RunError, match="has any records yet"):
        collect(tmp_path)


def test_a_run_whose_specification_is_damaged_has_no_settings(tmp_path):
    write_run(tmp_path / "x", 0, ZENO, NEGATIVE, THREE_ROUNDS)
    run = RunDirectory(tmp_path / "x/runs/0000000000")
    assert settings_of_run(run)["rule"] == "zeno"
    (run.path / "spec.json").write_text('{"run": {"na')
    assert settings_of_run(run) == {}
