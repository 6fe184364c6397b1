"""The notebooks: each draws the published copy of its experiment, or own runs, in plain pandas."""

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

DRAWN = {
    "quickstart.ipynb": ("quickstart", 1, ("zeno", "negative 6")),
    "figure3.ipynb": ("fig3_sync_single_validator", 3, ("zeno", "negative 6")),
    "figure7.ipynb": ("fig7_sync_tune_rho", 5, ("accepted of received", "zeno, rho 0.001", "validation only")),
    "robustness.ipynb": ("robustness_grid", 3, ("nnm + trimmed_mean", "krum")),
    "esync.ipynb": ("esync_paper", 3, ("ESync", "DC-ASGD", "samples/s")),
    "bytes_to_target.ipynb": ("bytes_to_target", 2, ("onebit direction both", "work")),
    "diloco_robust.ipynb": ("diloco_robust", 1, ("trimmed_mean", "nesterov", "sign_flip")),
}
"""The experiment of each notebook, the number of its figures, and words of a table that it shows."""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The cells of each notebook, executed in a folder with results.

    One kernel executes them one after another, because importing pandas takes longer than most notebooks; it forgets
    all names between two of them.
    """
    whole, places = nbformat.v4.new_notebook(), {}
    for notebook, (name, *_) in DRAWN.items():
        folder = tmp_path_factory.mktemp(name)
        if notebook == "quickstart.ipynb":
            results = folder / "results" / name
            invent(results, epochs=6, workers=2, attacks=ATTACKS[:2])
            write_tables(collect(results).table, results)
        for experiment in (name, "sgd_baseline"):
            copy = folder / "results" / "published" / experiment
            copy.mkdir(parents=True)
            shutil.copy(ROOT / "results" / "published" / experiment / "table.parquet", copy)
        (folder / "notebooks").mkdir()
        content = nbformat.read(ROOT / "notebooks" / notebook, as_version=4)
        nbformat.validate(content)
        start = [f"%cd -q {folder / 'notebooks'}", "%reset -f"]
        whole.cells += [*map(nbformat.v4.new_code_cell, start), *content.cells]
        places[notebook] = slice(len(whole.cells) - len(content.cells), len(whole.cells))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        patch.delenv("HPCPS_RESULTS", raising=False)
        NotebookClient(whole, timeout=120, kernel_name="python3").execute()
    return {notebook: whole.cells[place] for notebook, place in places.items()}


# Jupyter's own libraries warn about themselves; the notebooks' warnings are looked for in their output.
@pytest.mark.usefixtures("starts_processes")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("notebook", DRAWN)
def test_a_notebook_draws_its_experiment_and_complains_of_nothing(executed, notebook):
    name, figures, words = DRAWN[notebook]
    outputs = [output for cell in executed[notebook] for output in cell.get("outputs", [])]
    images = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(images) == figures
    assert all(len(base64.b64decode(image)) > 10_000 for image in images)
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
    tables = [output["data"]["text/plain"] for output in outputs if "text/plain" in output.get("data", {})]
    assert any(all(word in table for word in words) for table in tables)
    printed = "".join(output["text"] for output in outputs if output.get("name") == "stdout")
    own = "" if notebook == "quickstart.ipynb" else "published/"  # own runs come before the published copy
    assert f"from ../results/{own}{name}/table.parquet\n" in printed


@pytest.mark.parametrize(
    "notebook", sorted({path.name for path in (ROOT / "notebooks").glob("*.ipynb")} - {"library.ipynb"})
)
def test_a_notebook_is_plain_pandas(notebook):
    content = nbformat.read(ROOT / "notebooks" / notebook, as_version=4)
    code = "\n".join(cell.source for cell in content.cells if cell.cell_type == "code")
    assert "import pandas as pd" in code
    assert "hpcps" not in code
