"""What configgen writes for Kubernetes: compared with the published schemas, and with the plan that it holds."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from test_dialects import PLACEMENTS, job

from hpcps.errors import LaunchError
from hpcps.launch.detect import find_launcher
from hpcps.launch.launchers.kubernetes import object_name
from hpcps.launch.plan import Plan, PlannedRun

SCHEMAS = json.loads((Path(__file__).parent / "schemas" / "mpijob.v2beta1.json").read_text())


def mistakes(document, kind):
    schema = {**SCHEMAS, "$ref": f"#/definitions/{kind}"}
    return [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(document)]


def documents(job, **keys):
    launch = find_launcher("kubernetes", **keys).launch_of(job)
    (text,) = launch.files.values()
    return [*yaml.safe_load_all(text)]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_manifest_has_the_published_form(placement):
    config, mpijob = documents(job(PLACEMENTS[placement]))
    assert mistakes(config, "io.k8s.api.core.v1.ConfigMap") == []
    assert mistakes(mpijob, "v2beta1.MPIJob") == []


def test_a_key_that_nobody_knows_is_a_mistake():
    """The schema is strict at every depth."""
    _, mpijob = documents(job(PLACEMENTS["here"]))
    mpijob["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["imagePull"] = "Always"
    assert any("imagePull" in message for message in mistakes(mpijob, "v2beta1.MPIJob"))


def test_pods_take_the_places_of_hosts(tmp_path):
    config, mpijob = documents(job(PLACEMENTS["colocated"]), image="registry.example.org/hpcps:1")
    (tmp_path / "plan.json").write_text(config["data"]["conf.plan.json"])
    plan = Plan.read(tmp_path / "plan.json")
    before = PLACEMENTS["colocated"]
    assert [str(rank) for rank in plan.world] == [str(rank) for rank in before]
    hosts = dict.fromkeys(rank.host for rank in before)
    pods = dict.fromkeys(rank.host for rank in plan.world)
    assert [*pods] == [f"conf-worker-{number}.conf" for number in range(len(hosts))]
    assert config["data"]["conf.hosts"].splitlines() == [
        f"{pod}:{sum(rank.host == pod for rank in plan.world)}" for pod in pods
    ]
    # The ids of GPUs are those that a pod sees.
    assert {rank.gpu for rank in plan.world} == {None}
    assert {rank.gpu_index for rank in plan.world if rank.host == "conf-worker-0.conf"} == {0, 1}
    workers = mpijob["spec"]["mpiReplicaSpecs"]["Worker"]
    (container,) = workers["template"]["spec"]["containers"]
    assert (workers["replicas"], container["image"]) == (len(hosts), "registry.example.org/hpcps:1")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    # Nothing of this machine is in the image.
    assert "/shared" not in config["data"]["conf"]


def test_what_kubernetes_cannot_hold_is_an_error():
    large = PlannedRun("0", "large", "/results/x", {"run": {}, "text": "x" * 1_000_000})
    with pytest.raises(LaunchError, match="a ConfigMap of Kubernetes holds"):
        documents(job(PLACEMENTS["here"], plan=Plan(PLACEMENTS["here"], (large,))))
    with pytest.raises(LaunchError, match="does not begin with a letter"):
        object_name(Path("7.yaml"))
    with pytest.raises(LaunchError, match="hydra starts no containers"):
        find_launcher("hydra", "image")
    assert object_name(Path("My_Run.yaml-2")) == "my-run-2"


def test_files_with_long_names_have_objects_of_different_names():
    names = {object_name(Path(f"{'very-' * 12}long.yaml{part}")) for part in ("", "-2", "-3")}
    assert len(names) == 3
    assert {len(name) for name in names} == {40}
