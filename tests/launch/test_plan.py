import json

import pytest

from hpcps.errors import LaunchError
from hpcps.launch.local_rank import planned_rank, preset_gpu
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.launch.prepare import variables_of

PLAN = Plan(
    (Rank(0, "worker", 0, "a", "1"), Rank(1, "server", 0, "b")),
    (PlannedRun("0123456789", "zeno · none", "/shared/results/x/runs/0123456789", {"run": {"seed": 1}}),),
    rank_variables=("MY_RANK", "PMI_RANK"),
)


def test_it_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "conf.plan.json"
    PLAN.write(path)
    assert Plan.read(path) == PLAN
    assert Plan.read(path).fingerprint == PLAN.fingerprint
    assert [each.name for each in path.parent.iterdir()] == ["conf.plan.json"]


def test_a_plan_that_was_changed_is_refused(tmp_path):
    path = tmp_path / "conf.plan.json"
    PLAN.write(path)
    body = json.loads(path.read_text())
    body["world"][1]["host"] = "c"
    path.write_text(json.dumps(body))
    with pytest.raises(LaunchError, match="was changed"):
        Plan.read(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}'])
def test_what_is_no_plan_is_refused(tmp_path, text):
    path = tmp_path / "conf.plan.json"
    path.write_text(text)
    with pytest.raises(LaunchError, match="is no plan"):
        Plan.read(path)


def test_a_missing_plan(tmp_path):
    with pytest.raises(LaunchError, match="every host must be able to read that folder"):
        Plan.read(tmp_path / "conf.plan.json")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be written"):
        PLAN.write(tmp_path / "file" / "conf.plan.json")


def test_the_variables_of_the_launcher_say_the_rank():
    environment = {"PMI_RANK": "0", "SLURM_PROCID": "1"}
    preset_gpu(PLAN, environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert planned_rank(PLAN, {"PMI_RANK": "1", "SLURM_PROCID": "0"}) == PLAN.world[1]
    assert planned_rank(PLAN, {"SLURM_PROCID": "0"}) is None
    assert planned_rank(PLAN, {"SLURM_PROCID": "0", "HPCPS_RANK": "1"}) == PLAN.world[1]


@pytest.mark.parametrize("environment", [{}, {"PMI_RANK": "2"}, {"PMI_RANK": "x"}, {"PMI_RANK": "1"}])
def test_no_gpu_is_set_where_none_is_planned(environment):
    before = dict(environment)
    preset_gpu(PLAN, environment)
    assert environment == before


def test_ranks_find_the_shared_library_of_their_python():
    """That of a module is found by this variable alone; Open MPI and ssh do not pass it to other hosts."""
    assert variables_of(1, {"LD_LIBRARY_PATH": "/opt/python/lib"})["LD_LIBRARY_PATH"] == "/opt/python/lib"
    assert "LD_LIBRARY_PATH" not in variables_of(1, {})
