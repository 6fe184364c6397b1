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
        yield


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("notebook", "name", "attacks", "figures"),
    [
        ("figure3.ipynb", "fig3_sync_single_validator", ATTACKS, 3),
        ("quickstart.ipynb", "quickstart", ATTACKS[:3], 1),
    ],
)
def test_a_notebook_runs_and_draws(tmp_path, notebook, name, attacks, figures):
    """On the table that is committed; while there is none, on an invented one."""
    results = tmp_path / "results" / name
    committed = ROOT / "results" / name / "table.parquet"
    if committed.exists():
        results.mkdir(parents=True)
        shutil.copy(committed, results)
    else:
        invent(results, epochs=6, workers=2, attacks=attacks)
        write_tables(collect(results).table, results)
    execute(tmp_path, notebook, figures, ("zeno", "negative 6"))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("notebook", "name", "figures", "words"),
    [
        ("figure4.ipynb", "fig4_sync_two_validators", 5, ("attack", "zeno")),
        ("figure5.ipynb", "fig5_async_single_validator", 7, ("attack", "zeno++")),
        ("figure6.ipynb", "fig6_async_two_validators", 7, ("attack", "zeno++")),
        ("figure7.ipynb", "fig7_sync_tune_rho", 5, ("accepted of received", "zeno, rho 0.001", "validation only")),
    ],
)
def test_a_notebook_runs_on_the_committed_results(tmp_path, notebook, name, figures, words):
    for experiment in (name, "sgd_baseline"):
        committed = ROOT / "results" / experiment / "table.parquet"
        if experiment == name or committed.exists():
            (tmp_path / "results" / experiment).mkdir(parents=True)
            shutil.copy(committed, tmp_path / "results" / experiment)
    execute(tmp_path, notebook, figures, words)


def execute(folder, notebook, figures, words):
    """Run a notebook in a folder with results; it draws so many figures, shows a table with these words, complains of
    nothing.
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


@pytest.mark.parametrize(
    "notebook", sorted({path.name for path in (ROOT / "notebooks").glob("*.ipynb")} - {"library.ipynb"})
)
def test_a_notebook_is_plain_pandas(notebook):
    content = nbformat.read(ROOT / "notebooks" / notebook, as_version=4)
    code = "\n".join(cell.source for cell in content.cells if cell.cell_type == "code")
    assert "import pandas as pd" in code
    assert "hpcps" not in code
