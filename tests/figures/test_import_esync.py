"""Logs of the published ESync code become a table beside own runs; damaged ones are refused with file and place."""

import json
import math
import os

import pytest
from esync_logs import AGGREGATION, BATCH, EVALUATION, QUERY, SAMPLES, summary, write_logs
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcps.errors import InputError
from hpcps.figures.method_comparison import comparisons_of
from hpcps.records.esync_log import parse_summary, read_logs, table_of_logs
from hpcps.records.table import read_table


@pytest.fixture
def logs(tmp_path):
    write_logs(tmp_path / "resnet18-v1", ("esync", "sync", "async-niid", "local"))
    return tmp_path / "resnet18-v1"


def test_reports_become_rounds(logs):
    runs = read_logs(logs)
    assert [(run.network, run.mode, run.by_class) for run in runs] == [
        *(("", "esync", False), ("", "sync", False), ("", "local", False), ("", "async", True))
    ]
    assert list(runs[0].devices) == ["cloud1/cpu", "cloud1/gpu0", "cloud3/gpu1"]
    first, second, *_ = runs[0].devices["cloud1/gpu0"]
    assert first.samples == 40 * SAMPLES
    assert first.compute == pytest.approx(40 * (BATCH + 0.03))
    assert first.query == pytest.approx(41 * QUERY)
    assert (first.aggregate, first.evaluate, second.time) == (AGGREGATION, EVALUATION, 20.0)
    assert first.accuracy == 0.0, "the original leaves out an accuracy of zero"
    assert second.accuracy == 0.2
    assert runs[0].devices["cloud1/cpu"][0].accuracy is None


@pytest.mark.thorough
def test_the_command_writes_a_table_that_plot_draws(logs, hpcps, tmp_path):
    printed = hpcps("import", "esync", logs, "--model-bytes", "44.7e6", "--name", "original")
    assert "esync, iid: 3 devices, 4 rounds, 4 accuracies, of cloud1/gpu0" in printed
    table = read_table(tmp_path / "results/original/table.parquet")
    (shown,) = comparisons_of([(table, None)])
    assert shown.figure_data.lines == ("ESync", "SSGD", "ASGD", "standalone")
    esync, ssgd = shown.rates["split: iid"]
    assert esync.throughput.mean == pytest.approx([81 * SAMPLES / 10])
    assert ssgd.traffic.mean == pytest.approx([3 * 44.7e6 / 10])
    assert esync.workers == ("cloud1/cpu", "cloud1/gpu0", "cloud3/gpu1")
    assert esync.computing.mean == pytest.approx([100 * 3.51 / 10, 100 * 1.6 / 10, 100 * 1.6 / 10])
    curve = shown.figure_data.panels["split: iid"][0]
    assert curve.wall.tolist() == [10, 20, 30, 40]
    assert curve.accuracy.mean == pytest.approx([0, 20, 40, 60])
    flat = shown.figure_data.panels["split: by class"][-1]
    assert (flat.line, flat.wall.tolist()) == ("standalone", [0, 40])
    assert flat.accuracy.mean == pytest.approx([60, 60])
    assert "ASGD" in hpcps("plot", "esync", "original")
    assert len(list((tmp_path / "results/original/figures").glob("esync_*.png"))) == 4
    assert "`hpcps plot esync original` draws what they have" in hpcps("plot", "original", status=2)
    assert "`hpcps plot speedup` is not for original, which has logs of the ESync code" in hpcps(
        "plot", "speedup", "original", status=2
    )
    for command in ("report", "publish"):
        assert "`hpcps plot esync original` draws what they have" in hpcps(command, "original", status=2)
    assert not (tmp_path / "results/published").exists(), "no half of a copy"
    table = tmp_path / "results/original/table.parquet"
    assert hpcps("status", "original") == (
        f"original: logs of the ESync code, imported as {table}, and no runs; `hpcps plot esync original` draws them\n"
    )
    assert "note: without --model-bytes" in hpcps("import", "esync", logs, "--name", "original"), "it is replaced"


def test_logs_without_an_accuracy_are_named(hpcps, tmp_path):
    write_logs(tmp_path / "dark", ("sync",), devices=("cloud1/cpu",))
    printed = hpcps("import", "esync", tmp_path / "dark")
    assert "1 device, 4 rounds, no accuracy" in printed
    assert "it has no data for a figure; `hpcps export dark --to csv` converts it" in printed
    assert "the logs of dark have no accuracy" in hpcps("plot", "esync", "dark", status=2)


def test_a_folder_of_a_mode_and_one_of_a_device_are_read(logs, tmp_path):
    assert {run.network for run in read_logs(tmp_path)} == {"resnet18-v1"}
    (run,) = read_logs(logs / "esync")
    assert (run.network, run.mode, len(run.devices)) == ("", "esync", 3)
    (logs / "esync/cloud1/gpu0").rename(tmp_path / "mine")
    (run,) = read_logs(tmp_path / "mine", "sync-niid")
    assert (run.mode, run.by_class, list(run.devices)) == ("sync", True, ["mine"])


def test_a_summary_counts_all_but_the_aggregation_as_computing(tmp_path):
    (tmp_path / "ESync-Non-IID.json").write_text(json.dumps(summary("esync")))
    (run,) = read_logs(tmp_path)
    assert (run.mode, run.by_class, run.summary) == ("esync", True, True)
    (shown,) = comparisons_of([(table_of_logs("original", [run], None), None)])
    (rates,) = shown.rates["split: by class"]
    assert rates.computing.mean == pytest.approx([60, 60, 60])
    assert math.isnan(rates.traffic.mean[0])
    curve = shown.figure_data.panels["split: by class"][0]
    assert curve.wall.tolist() == [20, 30, 40], "three accuracies of four rounds: the first one was zero"


def damage(logs, text):
    (logs / "esync/cloud1/cpu/iter-3.txt").write_text(text)


REPORT = {"num_iters": 3, "time": {"0": {"get_batch": 1.0}}, "num_samples": 64, "total_time": 30.0}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "iter-3.txt: not valid JSON"),
        ('{"num_iters": 3, "time": {"0": {"get_ba', "iter-3.txt: not valid JSON"),
        ("[" * 100_000, "iter-3.txt: not valid JSON"),
        ("[]", "iter-3.txt: expects an object with num_iters"),
        (REPORT | {"time": {}}, "iter-3.txt: time: expects the seconds of each phase, by local step"),
        (REPORT | {"time": {"0": 3}}, "iter-3.txt: time.0: expects the seconds of each phase"),
        (REPORT | {"time": {"0": {"coffee": 3}}}, "time.0.coffee: no such phase; the phases are check ready"),
        (REPORT | {"time": {"0": {"get_batch": "x" * 999}}}, "time.0.get_batch: expects a number from 0, got xxx"),
        (REPORT | {"time": {"0": {"get_batch": -1}}}, "time.0.get_batch: expects a number from 0, got -1"),
        (REPORT | {"time": {"0": {"get_batch": math.nan}}}, "time.0.get_batch: expects a number from 0, got nan"),
        (REPORT | {"num_samples": True}, "num_samples: expects a number from 0, got True"),
        (REPORT | {"num_samples": None}, "num_samples: expects a number from 0, got None"),
        (REPORT | {"num_samples": 10**400}, "num_samples: expects a number from 0, got 1000"),
        (REPORT | {"total_time": math.inf}, "total_time: expects a number from 0, got inf"),
        (REPORT | {"total_time": 12.0}, "the time goes back from 20 to 12 s: processes with the same folder overwrite"),
        (REPORT | {"accuracy": 92.6}, "accuracy: expects an accuracy from 0 to 1, got 92.6"),
    ],
)
def test_a_damaged_report_is_refused_with_its_file_and_place(logs, hpcps, content, said):
    damage(logs, content if isinstance(content, str) else json.dumps(content))
    printed = hpcps("import", "esync", logs, status=2)
    assert said in printed
    assert "cloud1/cpu/iter-3.txt" in printed


def test_a_missing_report_is_named(logs, hpcps):
    (logs / "esync/cloud1/cpu/iter-2.txt").unlink()
    assert "cpu/iter-2.txt: is missing, but there is iter-4.txt" in hpcps("import", "esync", logs, status=2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lists: lists.pop("self_iters_list"), "cloud1.cpu.self_iters_list: expects a list of numbers"),
        (
            lambda lists: lists["num_samples_list"].append(1),
            "self_iters_list: has 4 rounds, but num_samples_",
        ),
        (lambda lists: lists["accuracy_list"].extend([0.1] * 9), "accuracy_list: has 9 rounds, but num_samples_list"),
        (lambda lists: lists["elapsed_time_list"].reverse(), r"elapsed_time_list[1]: the time goes back"),
        (lambda lists: lists["aggregate_time_list"].__setitem__(2, None), "aggregate_time_list[2]: expects a number"),
    ],
)
def test_a_damaged_summary_is_refused_with_its_place(tmp_path, hpcps, change, said):
    content = summary("sync")
    change(content["cloud1"]["cpu"])
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/Sync.json").write_text(json.dumps(content))
    assert said in hpcps("import", "esync", tmp_path / "logs", status=2)


def test_what_cannot_be_imported_is_said(logs, hpcps, tmp_path):
    assert "no folder" in hpcps("import", "esync", tmp_path / "nowhere", status=2)
    (tmp_path / "empty").mkdir()
    assert "no logs in" in hpcps("import", "esync", tmp_path / "empty", status=2)
    write_logs(tmp_path / "plain", ("run7",))
    assert "names its mode (esync, sync, async, dcasgd, local): give it with --mode" in hpcps(
        "import", "esync", tmp_path / "plain", status=2
    )
    assert "give another one with --name" in hpcps("import", "esync", logs, "--name", "../up", status=2)
    assert "size of the model in bytes, got -1" in hpcps("import", "esync", logs, "--model-bytes", "-1", status=2)
    (tmp_path / "results/mine/runs").mkdir(parents=True)
    assert "has own results" in hpcps("import", "esync", logs, "--name", "mine", status=2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads and writes everything")
def test_a_file_or_folder_that_cannot_be_read_is_named(logs, hpcps):
    (logs / "esync/cloud1/cpu/iter-1.txt").chmod(0)
    assert "iter-1.txt: cannot be read" in hpcps("import", "esync", logs, status=2)
    (logs / "esync/cloud1").chmod(0)
    try:
        assert f"{logs / 'esync/cloud1'} cannot be read" in hpcps("import", "esync", logs, status=2)
    finally:
        (logs / "esync/cloud1").chmod(0o700)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["accuracy_list", "num_samples_list", "self_iters_list", "elapsed_time_list"])
        | st.text(max_size=5), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.thorough
@settings(derandomize=True, max_examples=50, deadline=None)
@given(JSON)
def test_anything_else_is_refused_in_the_same_way(content):
    try:
        assert parse_summary("ESync.json: a.b", content) == []
        said = "ESync.json: a.b"
    except InputError as error:
        said = str(error)
    assert said.startswith("ESync.json: a.b")
