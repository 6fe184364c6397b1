import base64
import shutil
from pathlib import Path

import nbformat
import pytest
from invented import ATTACKS, invent
from nbclient import NotebookClient

from hpcps.figures.publish import write_tables
from hpcps.records.collect import collect

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def quiet():
    """Jupyter's own libraries warn about themselves; the notebooks' warnings are looked for in their output."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        patch.delenv("HPCPS_RESULTS", raising=False)
        yield


@pytest.mark.filterwarnings("default")
def test_a_notebook_draws_own_runs_rather_than_the_published_copy(tmp_path):
    results = tmp_path / "results" / "quickstart"
    invent(results, epochs=6, workers=2, attacks=ATTACKS[:2])
    write_tables(collect(results).table, results)
    publish(tmp_path, "quickstart")
    printed = execute(tmp_path, "quickstart.ipynb", 1, ("zeno", "negative 6"))
    assert "from ../results/quickstart/table.parquet\n" in printed


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("notebook", "name", "figures", "words"),
    [
        ("figure3.ipynb", "fig3_sync_single_validator", 3, ("zeno", "negative 6")),
        ("figure7.ipynb", "fig7_sync_tune_rho", 5, ("accepted of received", "zeno, rho 0.001", "validation only")),
        ("robustness.ipynb", "robustness_grid", 3, ("nnm + trimmed_mean", "krum")),
        ("esync.ipynb", "esync_paper", 3, ("ESync", "DC-ASGD", "samples/s")),
        ("bytes_to_target.ipynb", "bytes_to_target", 2, ("onebit direction both", "work")),
    ],
)
def test_a_notebook_draws_the_published_copy(tmp_path, notebook, name, figures, words):
    for experiment in (name, "sgd_baseline"):
        publish(tmp_path, experiment)
    printed = execute(tmp_path, notebook, figures, words)
    assert f"from ../results/published/{name}/table.parquet\n" in printed


def publish(folder, name):
    """Copy the table of a committed copy."""
    copy = folder / "results" / "published" / name
    copy.mkdir(parents=True)
    shutil.copy(ROOT / "results" / "published" / name / "table.parquet", copy)


def execute(folder, notebook, figures, words):
    """Run a notebook in a folder with results; it draws so many figures, shows a table with these words, complains of
    nothing. Return what it printed.
    """
    (folder / "notebooks").mkdir()
    content = nbformat.read(ROOT / "notebooks" / notebook, as_version=4)
    nbformat.validate(content)
    resources = {"metadata": {"path": str(folder / "notebooks")}}
    NotebookClient(content, timeout=120, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in content.cells for output in cell.get("outputs", [])]
    images = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(images) == figures
    assert all(len(base64.b64decode(image)) > 10_000 for image in images)
    complaints = [output["text"] for output in outputs if output.get("name") == "stderr"]
    assert complaints == []
    tables = [output["data"]["text/plain"] for output in outputs if "text/plain" in output.get("data", {})]
    assert any(all(word in table for word in words) for table in tables)
    return "".join(output["text"] for output in outputs if output.get("name") == "stdout")


@pytest.mark.parametrize(
    "notebook", sorted({path.name for path in (ROOT / "notebooks").glob("*.ipynb")} - {"library.ipynb"})
)
def test_a_notebook_is_plain_pandas(notebook):
    content = nbformat.read(ROOT / "notebooks" / notebook, as_version=4)
    code = "\n".join(cell.source for cell in content.cells if cell.cell_type == "code")
    assert "import pandas as pd" in code
    assert "hpcps" not in code
