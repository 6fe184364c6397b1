"""Kubernetes: an `MPIJob` of the MPI Operator, which `kubectl apply --server-side -f conf` starts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from hpcps.errors import LaunchError
from hpcps.launch.launchers.base import Launcher
from hpcps.launch.launchers.hydra import Hydra
from hpcps.launch.launchers.job import Job, Launch
from hpcps.launch.plan import Plan

_ENVIRONMENT = Path("/opt/hpcps/bin")
"""The programs of hpcps's environment in the image: python, and mpirun of MPICH."""
_MOUNTED = "/etc/hpcps"
_CLAIM = "hpcps-results"
_PROCESS_MEMORY = 2
"""GiB that a pod requests for each of its processes."""
_LARGEST_MAP = 1_000_000
"""Bytes of text that a ConfigMap holds; Kubernetes stores at most 1 MiB."""
_LONGEST_NAME = 40
_HASH = 8
"""Digits at the end of a name that is cut."""
_SSH = "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
_SSHD = "mkdir -p /run/sshd && exec /usr/sbin/sshd -De -o StrictModes=no"


class Kubernetes(Launcher):
    """The MPI Operator (`MPIJob`, v2beta1): `kubectl apply --server-side -f`; a host of the host file stands for a pod.

    A launcher pod copies the plan from a ConfigMap to the claim with the results, which every pod mounts at
    `/results`, and executes `mpirun` there. The operator names the pods, so only the order, the slots and the number of
    GPUs of the hosts count.
    """

    executable = "kubectl"
    rank_variables = ("PMI_RANK",)
    results_there: ClassVar[Path | None] = Path("/results")
    name: Literal["kubernetes"] = "kubernetes"
    image: str = Field("hpcps:latest", min_length=1, description="The container image of all pods.")

    def render(self, job: Job) -> Launch:
        """Render the ConfigMap with the plan, and the MPIJob.

        Raises:
            LaunchError: the configfile gives no name for the objects, or the plan is too large for a ConfigMap.
        """
        assert self.results_there is not None
        name = object_name(job.configfile)
        plan, gpus = in_pods(job.plan, name)
        folder = self.results_there / ".launch" / name
        # The paths and libraries of this machine are not those of the image.
        threads = {key: value for key, value in job.variables.items() if key.endswith("_NUM_THREADS")}
        inside = replace(
            job,
            plan=plan,
            plan_file=folder / "conf.plan.json",
            configfile=folder / "conf",
            mpirun=_ENVIRONMENT / "mpirun",
            python=_ENVIRONMENT / "python",
            variables={**threads, "HPCPS_DATA": str(self.results_there / "data")},
            agent=None,
            helper_variables={},
        )
        launch = Hydra().render(inside)
        data = {path.name: text for path, text in launch.files.items()}
        data |= {"conf.plan.json": plan.text, "ssh_config": _SSH}
        if (size := sum(len(text.encode()) for text in data.values())) > _LARGEST_MAP:
            raise LaunchError(
                f"the plan has {size} bytes, and a ConfigMap of Kubernetes holds {_LARGEST_MAP}: write one file for "
                "each part of the points, with --only"
            )
        slots: dict[str, int] = {}
        for rank in plan.world:
            slots[rank.host] = slots.get(rank.host, 0) + 1
        cores = max(slots.values()) * int(threads.get("OMP_NUM_THREADS", "1"))
        most = max(slots.values())
        requests: dict[str, object] = {"cpu": cores, "memory": f"{_PROCESS_MEMORY * most}Gi"}
        worker_resources: dict[str, object] = {"requests": requests}
        if gpus:
            worker_resources["limits"] = {"nvidia.com/gpu": gpus}
        copy = f"mkdir -p {folder} && cp {_MOUNTED}/conf* {folder}/ && exec {launch.line}"
        ready = {"tcpSocket": {"port": 22}, "initialDelaySeconds": 2}
        manifest = {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": name},
            "spec": {
                "slotsPerWorker": most,
                "mpiImplementation": "MPICH",
                "launcherCreationPolicy": "WaitForWorkersReady",
                "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 3},
                "mpiReplicaSpecs": {
                    "Launcher": {
                        "replicas": 1,
                        "restartPolicy": "OnFailure",
                        "template": self._pod(name, "launcher", copy, {"requests": {"cpu": "100m"}}, {}),
                    },
                    "Worker": {
                        "replicas": len(slots),
                        "restartPolicy": "Never",
                        "template": self._pod(name, "worker", _SSHD, worker_resources, {"readinessProbe": ready}),
                    },
                },
            },
        }
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-plan"}, "data": data}
        text = "".join(f"{line}\n" for document in (config, manifest) for line in ("---", *_yaml(document)))
        head = "".join(
            f"# {host.partition('.')[0]}: {', '.join(str(rank) for rank in plan.world if rank.host == host)}\n"
            for host in slots
        )
        # Otherwise kubectl stores a copy of the plan in an annotation, which may have a quarter of the size.
        command = (str(job.mpirun), "apply", "--server-side", "-f", str(job.configfile))
        return Launch(replace(job, plan=plan), {job.configfile: head + text}, command)

    def _pod(
        self, name: str, role: str, command: str, resources: Mapping[str, object], more: Mapping[str, object]
    ) -> dict[str, object]:
        """Return the template of a pod, which mounts the results and the plan, and has a /dev/shm of any size."""
        mounts: list[dict[str, object]] = [
            {"name": "results", "mountPath": str(self.results_there)},
            {"name": "plan", "mountPath": _MOUNTED},
            {"name": "plan", "mountPath": "/etc/ssh/ssh_config.d/hpcps.conf", "subPath": "ssh_config"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ]
        container = {
            "name": role,
            "image": self.image,
            "command": ["/bin/sh", "-c", command],
            "resources": dict(resources),
            "volumeMounts": mounts,
            **more,
        }
        volumes = [
            {"name": "results", "persistentVolumeClaim": {"claimName": _CLAIM}},
            {"name": "plan", "configMap": {"name": f"{name}-plan"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ]
        return {"spec": {"containers": [container], "volumes": volumes}}


def object_name(configfile: Path) -> str:
    """Return the name of the objects of Kubernetes, made from that of the configfile.

    A long name ends with a hash: files of one experiment differ at their ends, and no two may replace each other.

    Raises:
        LaunchError: nothing is left of the name.
    """
    name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\.ya?ml(?=$|-)", "", configfile.name.lower()))
    name = name.strip("-")
    if len(name) > _LONGEST_NAME:
        ending = hashlib.sha256(name.encode()).hexdigest()[:_HASH]
        name = f"{name[: _LONGEST_NAME - _HASH - 1].strip('-')}-{ending}"
    if not re.match("[a-z]", name):
        raise LaunchError(
            f"the objects of Kubernetes get the name of {configfile.name}, which does not begin with a letter: name "
            "another FILE for -o"
        )
    return name


def in_pods(plan: Plan, name: str) -> tuple[Plan, int]:
    """Return a plan on the pods of an MPIJob, and the number of GPUs of a pod; host k of the plan is pod k.

    Args:
        plan: the plan.
        name: the name of the job.
    """
    hosts = list(dict.fromkeys(rank.host for rank in plan.world))
    pods = {host: f"{name}-worker-{number}.{name}" for number, host in enumerate(hosts)}
    gpus = {host: list(dict.fromkeys(r.gpu for r in plan.world if r.host == host and r.gpu)) for host in hosts}
    world = tuple(
        replace(
            rank,
            host=pods[rank.host],
            gpu=None,
            gpu_index=gpus[rank.host].index(rank.gpu) if rank.gpu else rank.gpu_index,
        )
        for rank in plan.world
    )
    return replace(plan, world=world), max(
        (rank.gpu_index + 1 for rank in world if rank.gpu_index is not None), default=0
    )


def _yaml(value: object, indent: int = 0) -> Iterator[str]:
    """Yield the lines of a table or a list in YAML; texts of several lines are literal blocks."""
    space = " " * indent
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{space}{key}:", item, indent)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping):
                first, *others = _yaml(item, indent + 2)
                yield f"{space}- {first.lstrip()}"
                yield from others
            else:
                yield f"{space}- {json.dumps(item)}"


def _entry(head: str, item: object, indent: int) -> Iterator[str]:
    if isinstance(item, Mapping | list) and item:
        yield head
        yield from _yaml(item, indent + 2)
    elif isinstance(item, str) and "\n" in item:
        yield f"{head} |{'' if item.endswith(chr(10)) else '-'}"
        yield from (f"{' ' * (indent + 2)}{line}" if line else "" for line in item.removesuffix("\n").split("\n"))
    else:
        yield f"{head} {json.dumps(item)}"
