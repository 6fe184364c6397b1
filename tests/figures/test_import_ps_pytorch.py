"""Logs of ps_pytorch become a table beside own runs; damaged ones are refused with file and line."""

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ps_pytorch_logs import COMPUTE, FETCH, SAMPLES, SEND, evaluator, line, output, write

from hpcps.errors import InputError, RunError
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.speedup import speedups_of
from hpcps.records.ps_pytorch_log import LogFile, read_log, read_logs, table_of_logs
from hpcps.records.table import read_table


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ("old", {"compute": COMPUTE, "exchange": FETCH}),
        ("new", {"compute": COMPUTE, "exchange": FETCH + SEND}),
        ("other", {"compute": COMPUTE, "exchange": FETCH + SEND, "train_accuracy": 0.5}),
        ("encoded", {"compute": COMPUTE, "exchange": SEND, "train_accuracy": 0.5, "bytes_sent": 1.5 * 2**20}),
    ],
)
def test_the_lines_of_each_version_become_rounds(tmp_path, version, fields):
    log = write(tmp_path / "run.log", output(2, version=version))
    (run,) = read_logs([log])
    assert (run.name, list(run.steps), run.batch, run.last) == ("run", [1, 2], 100, 12)
    table = table_of_logs("x", [run])
    rounds = table[table["event"] == "round"]
    assert len(rounds) == 24
    first, *_, last = rounds[rounds["index"] == 0].to_dict("records")
    assert (first["round"], first["step"], first["samples"]) == (0, 1, 100)
    for name, value in fields.items():
        assert first[name] == pytest.approx(value), name
    # What no part accounts for is waiting: the three are the whole cost of the step.
    assert first["compute"] + first["exchange"] + first["wait"] == pytest.approx(1.0)
    # Each step has a worker that takes 1.5 s.
    assert (first["time"], last["time"]) == (1.5, 18.0)
    # Ten batches are a pass over the data, of every worker.
    assert (first["epoch"], last["epoch"]) == (pytest.approx(0.1), pytest.approx(1.2))
    (totals,) = table[(table["event"] == "totals") & (table["index"] == 1)].to_dict("records")
    assert (totals["samples"], totals["rounds"], totals["source"]) == (1200, 12, "worker 2")
    assert set(table["workers"]) == {2}
    assert set(table["train.batch_size"]) == {100}


def test_a_file_for_each_process_and_one_for_all_are_the_same_run(tmp_path):
    lines = output(3, version="other")
    whole = write(tmp_path / "one" / "run.log", [*lines, *evaluator(range(4, 13, 4))])
    nodes = tmp_path / "out"
    write(nodes / "out_node_0", [each for each in lines if "aster" in each])
    for rank in (1, 2, 3):
        write(nodes / f"out_node_{rank}", [each for each in lines if f"Worker: {rank}," in each])
    write(nodes / "evaluator.log", evaluator(range(4, 13, 4)))
    write(nodes / "hosts_address", ["10.0.0.1", "10.0.0.2"])
    (nodes / "model_step_4").write_bytes(b"PK\0\0Worker: ")
    (mixed,), (apart,) = read_logs([whole]), read_logs([nodes])
    named = sorted(path for path in nodes.iterdir() if path.name not in ("hosts_address", "model_step_4"))
    (given,) = read_logs(named)
    assert mixed.steps == apart.steps == given.steps
    assert mixed.evaluations == apart.evaluations == given.evaluations
    assert (apart.name, given.name) == ("out", "out")


def test_the_present_folder_is_read_like_any_other_one(tmp_path, hpcps, monkeypatch):
    for workers in (1, 2):
        write(tmp_path / "logs" / f"w{workers}.log", output(workers))
    write(tmp_path / "logs" / "hosts_address", ["10.0.0.1"])
    (tmp_path / "logs" / "model_step_4").write_bytes(b"PK\0\xff")
    monkeypatch.chdir(tmp_path / "logs")
    assert hpcps("import", "ps_pytorch", ".").startswith("w1: 1 worker, ")
    assert set(read_table(tmp_path / "results/logs/table.parquet")["series"]) == {"logs"}


def test_names_of_processes_before_lines_and_lines_without_a_break_between_them_are_read(tmp_path):
    lines = [f"[1,{rank}]<stdout>:{line(rank, step, 2)}" for step in (1, 2) for rank in (1, 2)]
    (run,) = read_logs([write(tmp_path / "tagged", lines)])
    joined = [line(1, 1, 2) + line(2, 1, 2), line(1, 2, 2) + line(2, 2, 2)]
    assert read_logs([write(tmp_path / "joined", joined)])[0].steps == run.steps


def test_evaluations_have_the_epoch_and_the_time_of_their_step(tmp_path):
    log = write(tmp_path / "run.log", [*output(2), *evaluator(range(6, 25, 6))])
    table = table_of_logs("x", read_logs([log]))
    found = table[table["event"] == "evaluation"]
    assert found["accuracy"].tolist() == pytest.approx([0.56, 0.62, 0.68, 0.74])
    assert found["top5"].tolist() == pytest.approx([0.9025] * 4)
    # No worker has a line of steps 18 and 24: the epoch follows from the samples of a step.
    assert found["epoch"].tolist() == pytest.approx([0.6, 1.2, 1.8, 2.4])
    assert found["wall"].tolist() == pytest.approx([9.0, 18.0, 18.0, 18.0])
    (shown,) = figure_data_of(table)
    assert shown.panels[""][0].accuracy.mean.tolist() == pytest.approx([56, 62, 68, 74])


def test_workers_that_evaluate_are_read_too(tmp_path):
    test = "Test set: Average loss: -3.2500, Prec@1: 75.5 Prec@5: 99.0"
    lines = [line(1, 1, 2), line(2, 1, 2), test, test, line(1, 2, 2), line(2, 2, 2)]
    lines.append("Test set: Step: 2, Average loss: 0.5000, Prec@1: 80.0 Prec@5: 100.0")
    table = table_of_logs("x", read_logs([write(tmp_path / "run", lines)]))
    found = table[table["event"] == "evaluation"]
    assert found["accuracy"].tolist() == pytest.approx([0.755, 0.8])
    # A negative loss is no cross-entropy: that evaluator does not normalize the outputs.
    assert found["loss"].tolist() == pytest.approx([math.nan, 0.5], nan_ok=True)


def test_a_loss_that_is_not_finite_means_that_the_model_has_diverged(tmp_path):
    lines = output(1, steps=4)
    lines[-1] = lines[-1].replace(f"Loss: {2.3 / 1.4 + 0.01:.4f}", "Loss: nan")
    assert "Loss: nan" in lines[-1]
    table = table_of_logs("x", read_logs([write(tmp_path / "run", [*lines, *evaluator(range(2, 5, 2))])]))
    assert table[table["event"] == "evaluation"]["diverged"].tolist() == [0, 1]


def test_the_speed_up_is_that_of_their_notebook(tmp_path):
    """T is the sum over the steps of the slowest worker; the work of all workers together is the same."""
    for workers, steps in ((1, 40), (2, 20), (4, 10)):
        write(tmp_path / "strong" / f"{workers}_workers", output(workers, steps))
    runs = read_logs([tmp_path / "strong"])
    assert [run.name for run in runs] == ["1_workers", "2_workers", "4_workers"]
    (shown,) = speedups_of(table_of_logs("strong", runs))
    (one,) = shown.lines
    np.testing.assert_allclose(one.seconds.mean, [60, 30, 15])
    np.testing.assert_allclose(one.speedup.mean, [1, 2, 4])
    assert shown.measure.startswith("T: sum over the rounds of the slowest worker's seconds")


def test_logs_without_a_speed_up_say_what_to_import(tmp_path):
    write(tmp_path / "one", output(2, 20))
    with pytest.raises(RunError, match=r"several numbers of workers \(import their logs together\)"):
        speedups_of(table_of_logs("x", read_logs([tmp_path / "one"])))
    write(tmp_path / "short", output(2, 1))
    with pytest.raises(RunError, match="no logs that show the samples of a step: import two or more steps"):
        speedups_of(table_of_logs("x", read_logs([tmp_path / "short"])))


def test_a_folder_of_runs_is_a_line_of_the_speed_up(tmp_path):
    for series, batch in (("plain", 100), ("compressed", 50)):
        for workers in (1, 2):
            write(tmp_path / series / f"{workers}_workers", output(workers, 20, batch=batch))
    table = table_of_logs("x", read_logs([tmp_path / "plain", tmp_path / "compressed"]))
    assert table.attrs["swept"] == ["series", "workers"]
    assert set(table["label"].astype(str)) == {
        *("plain/1_workers", "plain/2_workers", "compressed/1_workers", "compressed/2_workers")
    }
    assert table["run_id"].nunique() == 4
    (shown,) = speedups_of(table)
    assert [(line.line, line.weak) for line in shown.lines] == [("plain", True), ("compressed", True)]


@pytest.mark.thorough
def test_the_commands_read_the_table(tmp_path, hpcps):
    for workers, steps in ((1, 24), (2, 12)):
        write(tmp_path / "logs" / f"w{workers}.log", [*output(workers, steps), *evaluator(range(6, steps + 1, 6))])
    printed = hpcps("import", "ps_pytorch", tmp_path / "logs", "--name", "theirs")
    assert "w1: 1 worker, steps of 100 samples up to step 24, training loss 0.6865 in it, 4 accuracies, at the end" in (
        printed
    )
    table = tmp_path / "results/theirs/table.parquet"
    assert f"wrote {table} ({len(read_table(table))} rows); `hpcps plot theirs` and `hpcps plot speedup theirs`" in (
        printed
    )
    words = hpcps("plot", "speedup", "theirs")
    assert [row.split() for row in words.splitlines() if "strong" in row][1][5:12] == [
        *("2", "|", "2,400", "|", "18", "|", "2.00")
    ]
    assert "final test accuracy" in hpcps("plot", "theirs")
    assert [*(tmp_path / "results/theirs/figures").glob("accuracy_by_epoch*")]
    assert not [*(tmp_path / "results/theirs/figures").glob("accuracy_by_bytes*")], "the logs state none"
    assert "imported logs of ps_pytorch" in hpcps("collect", "theirs")
    assert "`hpcps plot theirs` and `hpcps plot speedup theirs` draw them" in hpcps("status", "theirs")
    for kind in ("esync", "bytes", "grid"):
        assert hpcps("plot", kind, "theirs", status=2) == (
            f"hpcps: `hpcps plot {kind}` is not for theirs, which has logs of ps_pytorch: `hpcps plot theirs` and "
            "`hpcps plot speedup theirs` draw what they have\n"
        )
    hpcps("export", "theirs", "--to", "csv")
    assert (tmp_path / "results/theirs/export/csv/round.csv").is_file()
    assert "w2" in hpcps("import", "ps_pytorch", tmp_path / "logs", "--name", "theirs"), "it is replaced"


def test_the_report_of_learning_rates_names_the_lowest_loss(tmp_path, hpcps):
    """As their script, which reads only the lines of the last step."""
    for rate in (0.125, 0.25, 0.5):
        lines = output(2, 10, rate=rate)
        write(tmp_path / "tune" / f"lr_{rate}", [each for each in lines if "Step: 10," in each])
    printed = hpcps("import", "ps_pytorch", *sorted((tmp_path / "tune").iterdir()), "--name", "tune")
    assert f"lr_0.25: 2 workers, steps of 100 samples up to step 10, training loss {2.3 / 3.5 + 0.015:.4f}" in printed
    assert f"lowest training loss in step 10: lr_0.5 ({2.3 / 6 + 0.015:.4f})" in printed
    assert "it has no data for a figure; `hpcps export tune --to csv` converts it" in printed
    assert hpcps("status", "tune").endswith("table.parquet, and no runs\n")
    assert "the logs of tune have no accuracy" in hpcps("plot", "tune", status=2)


def test_only_figures_that_can_be_drawn_are_offered(tmp_path, hpcps):
    alone = write(tmp_path / "alone.log", [*output(2), *evaluator(range(6, 13, 6))])
    assert " rows); `hpcps plot alone` draws it\n" in hpcps("import", "ps_pytorch", alone, "--name", "alone")
    assert "and no runs; `hpcps plot alone` draws them\n" in hpcps("status", "alone")
    logs = [write(tmp_path / f"w{workers}", output(workers)) for workers in (1, 2)]
    assert " rows); `hpcps plot speedup pair` draws it\n" in hpcps("import", "ps_pytorch", *logs, "--name", "pair")


def test_runs_of_equal_names_are_told_apart_and_none_is_read_twice(tmp_path, hpcps):
    logs = [write(tmp_path / folder / "run.log", output(2, 3, rate=rate)) for folder, rate in (("a", 0.1), ("b", 0.5))]
    printed = hpcps("import", "ps_pytorch", *logs, "--name", "same")
    assert [each.partition(":")[0] for each in printed.splitlines()[:2]] == ["run", "run (2)"]
    assert "lowest training loss in step 3: run (2) (" in printed
    assert set(read_table(tmp_path / "results" / "same" / "table.parquet")["log"]) == {"run", "run (2)"}
    for paths in ([logs[0], logs[0]], [tmp_path, logs[0]], [tmp_path / "a", tmp_path]):
        refused = hpcps("import", "ps_pytorch", *paths, "--name", "twice", status=2)
        assert "a/run.log would be read twice: give each log once, by itself or by its folder" in refused


WHOLE = output(2, 3)


def damaged(number, text):
    return [*WHOLE[: number - 1], text, *WHOLE[number:]]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (damaged(7, WHOLE[6][:60]), "run.log:7: is cut, or mixed with another line: delete such lines from a copy"),
        (damaged(7, WHOLE[6][40:]), "run.log:7: is cut, or mixed"),
        (damaged(7, WHOLE[6][:-2]), "run.log:7: is cut, or mixed"),
        (damaged(7, WHOLE[6][:50] + WHOLE[7] + WHOLE[6][50:]), "run.log:7: is cut, or mixed"),
        (damaged(7, WHOLE[6] + "345"), "run.log:7: is cut, or mixed"),
        (damaged(7, WHOLE[6].rpartition(",")[0]), "run.log:7: lacks fields that other lines have"),
        (
            damaged(7, WHOLE[6].replace("Time Cost: ", "Time Cost: -")),
            "run.log:7: has a rank, a time or a number of samples that",
        ),
        (
            damaged(7, WHOLE[6].replace("Worker: 1", "Worker: 0")),
            "run.log:7: has a rank, a time or a number of samples that",
        ),
        (damaged(7, WHOLE[6].replace("Forward: 0.2000", "Forward: nan")), "run.log:7: has a rank, a time"),
        (damaged(7, WHOLE[6].replace("Worker: 1", "Worker: 999999999")), "run.log:7: has a rank, a time"),
        (damaged(7, WHOLE[6].replace(f"/{SAMPLES}", "/0")), "run.log:7: has a rank, a time or a number of samples"),
        ([*damaged(7, WHOLE[6][:60]), *(["Worker: 1,"] * 30)], "(and 30 further lines: 19, 20, 21"),
        ([*WHOLE, *WHOLE], "run.log:25: worker 1 is at step 1 after step 3: the file has lines of several runs"),
        ([evaluator(range(2, 3))[1], *WHOLE], "run.log:1: is of no step: no line before it names one"),
        ([*WHOLE, "Test set: Average loss: 1.0000, Prec@1: 950 Prec@5: 99"], "run.log:19: has an accuracy above 100 %"),
    ],
)
def test_damaged_lines_are_refused_with_file_and_line(tmp_path, hpcps, lines, said):
    printed = hpcps("import", "ps_pytorch", write(tmp_path / "run.log", lines), status=2)
    assert said in printed
    assert "Traceback" not in printed


def test_an_evaluation_at_the_very_end_may_be_cut(tmp_path, hpcps):
    log = write(tmp_path / "run.log", [*WHOLE, *evaluator(range(2, 3))])
    log.write_text(log.read_text()[:-1])
    assert "run.log:20: is the last one, and has no end" in hpcps("import", "ps_pytorch", log, status=2)


def test_all_damaged_files_are_named_at_once(tmp_path, hpcps):
    for name in ("a", "b"):
        write(tmp_path / name / "run.log", damaged(7, WHOLE[6][:60]))
    printed = hpcps("import", "ps_pytorch", tmp_path / "a", tmp_path / "b", "--name", "x", status=2)
    assert "a/run.log:7" in printed
    assert "b/run.log:7" in printed


def test_what_cannot_be_imported_is_said(tmp_path, hpcps):
    def refused(*logs, options=()):
        return hpcps("import", "ps_pytorch", *logs, *options, "--name", "x", status=2)

    whole = write(tmp_path / "whole.log", WHOLE)
    assert "no file or folder" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no line of a worker of ps_pytorch in" in refused(tmp_path / "empty")
    assert "has no line of a worker of ps_pytorch: put the logs of all processes" in refused(
        write(tmp_path / "other.txt", ["epoch 1"])
    )
    second = write(tmp_path / "second", [each for each in WHOLE if "Worker: 2" in each])
    assert "has no line of worker 1 of 2: put the logs of all processes of the run into one folder" in refused(second)
    third = write(tmp_path / "third", [each.replace("size is 3", "size is 4") for each in WHOLE])
    assert "has no line of worker 3 of 3" in refused(third)
    lone = write(tmp_path / "lone", evaluator(range(1, 2)))
    assert "lone has no line of a worker" in refused(whole, write(tmp_path / "again", WHOLE), lone)
    other = write(tmp_path / "other" / "b", [line(2, step, 2, batch=50) for step in (1, 2)])
    write(tmp_path / "other" / "a", [line(1, step, 2) for step in (1, 2)])
    assert "other has steps of 50, 100 samples: they are of several runs" in refused(other.parent)
    world = write(tmp_path / "world" / "b", [line(2, 1, 2), "the world size is 3"])
    write(tmp_path / "world" / "a", [line(1, 1, 2), "the world size is 5"])
    assert "world has lines of runs of 2, 4 workers: separate them" in refused(world.parent)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\0")
    assert "binary:1: not UTF-8 text" in refused(binary)
    assert "--mode and --model-bytes are for `hpcps import esync`" in refused(whole, options=["--mode", "sync"])
    assert "`hpcps import esync` takes one folder" in hpcps("import", "esync", tmp_path, tmp_path, status=2)
    late = write(tmp_path / "late", [line(1, 15, 1), *evaluator(range(20, 21))])
    assert "late has an evaluation of step 20, but no line of a worker in this step" in refused(late)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads and writes everything")
def test_a_file_or_folder_that_cannot_be_read_is_named(tmp_path, hpcps):
    log = write(tmp_path / "run.log", WHOLE)
    log.chmod(0)
    assert "run.log: cannot be read" in hpcps("import", "ps_pytorch", log, status=2)
    log.chmod(0o600)
    (tmp_path / "within").mkdir(mode=0)
    try:
        assert f"{tmp_path / 'within'} cannot be read" in hpcps("import", "ps_pytorch", tmp_path, status=2)
    finally:
        (tmp_path / "within").chmod(0o700)


def test_other_files_of_a_folder_are_no_logs_and_damaged_ones_are(tmp_path, hpcps):
    write(tmp_path / "logs" / "run.log", WHOLE)
    (tmp_path / "logs" / "README").write_bytes("Läufe".encode("latin-1"))
    hpcps("import", "ps_pytorch", tmp_path / "logs", "--name", "a")
    for name in "bc":
        (tmp_path / "logs" / name).write_bytes(b"Worker: 1, \xff")
    said = hpcps("import", "ps_pytorch", tmp_path / "logs", "--name", "a", status=2)
    assert "logs/b:1: not UTF-8 text" in said
    assert "logs/c:1: not UTF-8 text" in said


def test_a_single_step_in_a_later_pass_does_not_show_its_samples(tmp_path, hpcps):
    log = write(tmp_path / "late.log", [line(1, 15, 1)])
    assert "note: the lines of late do not show the samples of a step" in hpcps("import", "ps_pytorch", log)


@pytest.mark.thorough
@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.integers(0, 2000), st.integers(0, 2000))
def test_a_cut_log_is_refused_or_read_as_far_as_it_is_whole(tmp_path_factory, start, length):
    """Whatever piece of a log: the steps that are read are steps of the log."""
    folder = tmp_path_factory.mktemp("cut")
    (whole,) = read_logs([write(folder / "whole", WHOLE)])
    text = (folder / "whole").read_text()
    (folder / "piece").write_text(text[start : start + length])
    try:
        piece = read_log(folder / "piece")
        said = f"{folder / 'piece'}:"
    except InputError as error:
        piece, said = LogFile(folder / "piece"), str(error)
    assert said.startswith(f"{folder / 'piece'}:")
    for rank, steps in piece.steps.items():
        assert {step.step for step in steps} <= {step.step for step in whole.steps[rank]}
        assert all(step.loss in {each.loss for each in whole.steps[rank]} for step in steps)
        assert all(0 <= step.done <= SAMPLES for step in steps)
