"""The report, as text and in a browser."""

import json
import re
import sys
from pathlib import Path

import pytest
from browser import Opened, browser
from invented import ATTACKS, invent

from hpcps.cli.main import main
from hpcps.figures.final import comma_separated
from hpcps.figures.report.content import read_content
from hpcps.records.locate import ExperimentLocation
from hpcps.records.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("starts_processes")

pytest.importorskip("plotly", reason="plotly is not installed")

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert('run')</script> & \"zeno\" </script>"


def published(name):
    """Return the committed results of an experiment."""
    return next(path.parent for path in sorted(ROOT.glob(f"results/**/{name}/table.parquet")))


def write(results, file):
    assert main(["report", str(results), "-o", str(file)]) == 0
    return file


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def figure3(tmp_path_factory):
    return write(published("fig3_sync_single_validator"), tmp_path_factory.mktemp("figure3") / "report.html")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The report of a folder with runs of two seeds: done, failed and not started ones, with texts that are markup."""
    results = tmp_path_factory.mktemp("fresh") / "fresh"
    invent(
        results, rules=("average", "zeno"), attacks=ATTACKS[:2], seeds=(1, 2), epochs=4, workers=2,
        unfinished=("zeno · none",),
    )  # fmt: skip
    for run_id in ("0000000002", "0000000006"):
        failed = RunDirectory(results / "runs" / run_id)
        failed.fail(role="worker", index=1, host="n07", round=3, phase="train", error=HOSTILE)
        failed.fail(role="server", index=0, host="n07", round=3, phase="receive", error="worker-1 is gone")
    other = RunDirectory(results / "runs" / "0000000000")
    other.write_provenance(
        {"hpcps": "0.1.0", "command": ["hpcps", "run", HOSTILE], "git": {"commit": "c0ffee", "uncommitted": True},
         "machine": {"host": "n07", "cpu": "a CPU", "cores": 4, "usable_cores": 2}, "packages": {"numpy": "2.0"}},
    )  # fmt: skip
    other.finish(40.0)  # with the checksum of that file
    spec = json.loads((results / "runs" / "0000000000" / "spec.json").read_text())
    waiting = RunDirectory(results / "runs" / "00000000ff")
    waiting.create({**spec, "run_id": "00000000ff", "index": 99, "label": HOSTILE})
    return write(results, results / "report.html")


def test_settings_begin_with_those_that_are_no_defaults(fresh):
    text = fresh.read_text()
    changed, usual = text[text.index('id="settings"') : text.index('id="failures"')].split("<details>")
    assert "<code>communication.skip_rate</code></th><td>0.2</td><td>0.0</td>" in changed
    assert "<code>validation.rule.kind</code></th><td>&#34;average&#34; · &#34;zeno&#34;</td>" in changed
    assert "<code>train.batch_size</code></th><td>32</td><td>32</td>" in usual
    assert "skip rate 0.2" in text, "in the heading of the figures"


@pytest.mark.thorough
def test_figure_3_is_small_and_complete(figure3):
    assert figure3.stat().st_size < 6e6
    text = figure3.read_text()
    assert text.count("<figure ") == 8, "accuracies and acceptance rates of four panels"
    for words in (
        "trimmed mean",
        "attack: negative, scale 6",
        "commit",
        "Intel(R) Xeon",
    ):
        assert words in text
    assert "16 runs: 16 done" in text
    assert re.findall(r"<td>20/20</td><td>(.*?)</td>", text)[:3] == ["53.4", "10.1", "9.5"]


def test_the_tables_hold_what_final_accuracy_csv_holds(fresh):
    content = read_content(ExperimentLocation(fresh.parent))
    rows = [line.split(",") for line in comma_separated(content.shown).splitlines()[1:]]
    text = fresh.read_text()
    assert len(rows) == 4
    for line, panel, accuracy, low, high, seeds, *_ in rows:
        assert seeds == "2"
        row = text[text.index(f'<tr data-line="{line}">') :]
        cell = re.search(rf'<td data-panel="{re.escape(panel)}">(.*?)</td>', row, re.DOTALL)
        assert cell[1].startswith(f"{float(accuracy):.1f} [{float(low):.1f}–{float(high):.1f}]")
    assert "† 2 of 2" in text


def test_it_lists_what_ran_what_failed_and_what_is_missing(fresh):
    text = fresh.read_text()
    assert "9 runs: 6 done, 2 failed, 1 not started" in text
    first = re.findall(r"<strong>First to fail:</strong> (.*?)</p>", text)
    assert len(first) == 2
    assert all(each.startswith("worker-1 on n07 failed in round 3, phase train: &lt;script&gt;") for each in first)
    assert "1 further process failed" in text
    assert "c0ffee with uncommitted changes" in text


def test_it_says_what_a_damaged_run_lacks(tmp_path):
    results = tmp_path / "x"
    invent(results, rules=("zeno", "average"), attacks=ATTACKS[:1], epochs=2, workers=1)
    (results / "runs/0000000001/DONE").write_text("")
    text = write(results, tmp_path / "x.html").read_text()
    assert re.search(r'data-state="damaged">damaged</span>: it .*lacks a readable DONE', text)


def test_texts_of_files_are_escaped(fresh):
    text = fresh.read_text()
    assert "alert" in text
    assert "<script>alert" not in text
    assert text.count("</script>") == 3


def test_a_folder_without_evaluations_has_a_report(tmp_path):
    invent(tmp_path / "early", rules=("zeno",), attacks=ATTACKS[:1], epochs=2)
    for record in (tmp_path / "early" / "runs").glob("*/records/*"):
        record.unlink()
    (tmp_path / "early" / "runs" / "0000000000" / "DONE").unlink()
    text = write(tmp_path / "early", tmp_path / "early.html").read_text()
    assert "1 run: 1 not started" in text
    assert "There is no evaluation yet." in text
    assert len(text) < 100_000


def test_without_plotly_the_message_says_what_to_install(fresh, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert main(["report", str(fresh.parent), "-o", str(fresh)]) == 2
    assert "needs the package plotly, which is not installed: install hpcps with its extra" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_a_plain_error(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["report", str(published("sgd_baseline")), "-o", str(tmp_path / "file" / "report.html")]) == 2
    assert "choose another file with -o" in capsys.readouterr().err


def test_figure_3_in_a_browser(chromium, figure3):
    content = read_content(ExperimentLocation(published("fig3_sync_single_validator")))
    (shown,), within = content.shown, '[data-section="0"]'
    opened = Opened(chromium, figure3)
    page, accuracy = opened.page, f'{within} [data-panel="negative 6"] .chart'
    page.wait_for_selector(f"{accuracy} .main-svg")
    assert opened.drawn(accuracy) == ["average", "trimmed mean", "phocas", "zeno", "SGD"]

    zeno = next(curve for curve in shown.panels["negative 6"] if curve.line == "zeno")
    popup = opened.point(accuracy, zeno.epoch[7], zeno.accuracy.mean[7])
    assert popup.startswith("zenoepoch: 8")
    assert popup.endswith(f"test accuracy (%): {float(f'{zeno.accuracy.mean[7]:.5g}'):g}")

    page.locator('input[name="line"][value="phocas"]').uncheck()
    assert opened.drawn(accuracy) == ["average", "trimmed mean", "zeno", "SGD"]
    assert not opened.is_visible('tr[data-line="phocas"]')
    page.locator('input[name="panel"][value="negative 6"]').uncheck()
    assert not opened.is_visible('figure[data-panel="negative 6"]')
    assert not opened.is_visible('td[data-panel="negative 6"]')
    assert opened.is_visible('figure[data-panel="random 1"]')
    page.locator('input[name="panel"][value="negative 6"]').check()
    assert opened.is_visible(accuracy)

    page.locator(f'{within} select[data-axis="x"]').select_option("bytes")
    assert "sent by all processes" in page.locator(f"{accuracy} .xtitle").text_content()
    assert opened.drawn(accuracy) == ["average", "trimmed mean", "zeno", "SGD"]

    titles = page.evaluate(
        "(s) => [...document.querySelectorAll(`${s} .modebar-btn`)].map((b) => b.dataset.title)", accuracy
    )
    assert titles == ["Download plot as a PNG", "Zoom", "Pan", "Reset axes"]  # and none that sends data anywhere

    page.mouse.move(0, 0)
    box = page.locator(f"{accuracy} .nsewdrag").bounding_box()
    before = page.evaluate("(s) => document.querySelector(s).layout.xaxis.range", accuracy)
    page.mouse.move(box["x"] + 40, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 140, box["y"] + 120, steps=4)
    page.mouse.up()
    page.wait_for_function(
        "([s, range]) => document.querySelector(s).layout.xaxis.range[1] < range[1]", arg=[accuracy, before]
    )
    assert opened.requests == [figure3.as_uri()]
    assert opened.complaints == []


@pytest.mark.parametrize("width", [390, 1600])
def test_a_fresh_folder_in_a_browser(chromium, fresh, width):
    opened = Opened(chromium, fresh, width)
    opened.page.wait_for_selector('[data-section="1"] .main-svg')
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    columns = opened.page.evaluate(
        "new Set([...document.querySelectorAll('[data-section=\"0\"] figure')].map((f) => f.offsetLeft)).size"
    )
    assert columns == (1 if width == 390 else 2)
    panels = read_content(ExperimentLocation(fresh.parent)).shown[0].panels
    panel, curve = next((panel, curve) for panel in panels for curve in panels[panel] if curve.seeds == 2)
    popup = opened.point(f'[data-section="0"] [data-panel="{panel}"] .chart', curve.epoch[-1], curve.accuracy.mean[-1])
    assert "range of 2 seeds" in popup
    assert HOSTILE in opened.page.locator(".runs").text_content()
    assert opened.complaints == []


def test_an_asynchronous_experiment_in_a_browser(chromium, tmp_path):
    opened = Opened(chromium, write(published("fig5_async_single_validator"), tmp_path / "report.html"))
    opened.page.wait_for_selector('[data-section="3"] .main-svg')
    titles = opened.page.locator("h4").all_text_contents()
    assert titles == ["Test accuracy", "Acceptance rate", "Staleness of applied updates", "Applied updates by worker"]
    popup = opened.point('[data-section="3"] figure .chart', -0.2, 1)
    assert "worker: 0" in popup
    assert "mean staleness" in popup
    with opened.page.expect_download() as download:
        opened.page.locator('[data-section="3"] .modebar-btn[data-title="Download plot as a PNG"]').first.click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    assert opened.complaints == []
