"""The tutorial notebook, and the interrupt button, in a real kernel."""

import time
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("default")  # Jupyter's own libraries warn about themselves

CELL = """
import hpcps
import small
done = hpcps.run(small.small(train={"epochs": 30}, checkpoint={"every": 0}), callbacks=hpcps.Callbacks(print))
print("done", done.final_model(done.ids[0]).size)
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{Path(__file__).parent}")


@pytest.mark.usefixtures("starts_processes")
def test_the_tutorial(tmp_path):
    text = (ROOT / "notebooks/library.ipynb").read_text()
    assert text.count('"epochs\\": 5,') == 1
    content = nbformat.reads(text.replace('"epochs\\": 5,', '"epochs\\": 1,'), as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(content, timeout=120, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in content.cells for output in cell.get("outputs", [])]
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
    shown = [output["data"] for output in outputs if "data" in output]
    assert len([data for data in shown if "image/png" in data]) == 1
    bars = [data["text/html"] for data in shown if "<progress" in data.get("text/html", "")]
    assert len(bars) == 4, "each run shows one bar, which moves in place"
    assert "6 of 6 runs done" in bars[0]
    assert any("average" in data["text/plain"] and "negative 6" in data["text/plain"] for data in shown)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("starts_processes")
def test_the_interrupt_button(tmp_path):
    """The cell says that the run stopped; executed again, it goes on from there and finishes."""
    manager, client = start_new_kernel(cwd=str(tmp_path))
    try:
        client.execute(CELL, stop_on_error=False)  # else the kernel drops requests for a moment
        wait(client, lambda message: "RoundReport" in message["content"].get("text", ""))
        manager.interrupt_kernel()
        error = wait(client, lambda message: message["msg_type"] == "error")["content"]
        assert error["ename"] == "KeyboardInterrupt"
        assert "run the experiment again to go on" in error["evalue"]
        assert list(tmp_path.glob("results/small/runs/*/checkpoints/*"))
        client.execute(CELL)
        said = []
        wait(client, lambda message: said.append(message["content"].get("text", "")) or "done 17226" in said[-1])
        rounds = [text for text in said if "RoundReport" in text]
        assert "round=0," not in rounds[0]
        client.execute("hpcps.load('none.toml')")
        error = wait(client, lambda message: message["msg_type"] == "error")["content"]
        assert error["traceback"] == ["SpecError: none.toml: there is no such file"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def wait(client, expected):
    """Return the first message of the kernel that is as expected."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        message = client.get_iopub_msg(timeout=120)
        if expected(message):
            return message
    raise AssertionError("the kernel did not say it in time")
