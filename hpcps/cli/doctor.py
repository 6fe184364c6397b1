"""`hpcps doctor`: prints what this machine offers, which needs of a file it does not meet, and how hosts differ."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.cli.arguments import add_point_arguments, add_results_argument
from hpcps.cli.hosts_table import hosts_table
from hpcps.errors import LaunchError
from hpcps.launch.batch import allocation
from hpcps.launch.detect import TIMEOUT
from hpcps.launch.dev_shm import Space
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.hostfile import Host, read_hostfile

if TYPE_CHECKING:
    from hpcps.launch.doctor.diagnosis import Diagnosis
    from hpcps.launch.doctor.needs import NeedsCheck


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="show what this machine offers, and what a file needs",
        description="Examine this machine: MPI, GPUs, MPS, cores, shared memory, kernels, and the batch job. With an "
        f"experiment file, list its needs that are not met here; then the exit status is {ExitStatus.UNMET.value}. "
        "What may hang or crash runs in a separate process with a deadline. With --hostfile, compare hosts instead, "
        "over ssh or the batch system: versions, clocks, the shared folder, memory, GPUs, and the network between each "
        f"pair; if one differs or lacks something, the exit status is {ExitStatus.UNMET.value}.",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="an experiment file")
    parser.add_argument(
        "--hostfile",
        metavar="HOSTS",
        nargs="?",
        const="",
        help="compare the hosts of this host file; without HOSTS, those of the batch job",
    )
    add_point_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Print the result; return 0, or `ExitStatus.UNMET` if needs of the file are not met."""
    from hpcps.launch.doctor.diagnosis import diagnose
    from hpcps.launch.doctor.needs import needs_of
    from hpcps.spec.load import load_experiment

    if args.hostfile is not None:
        return _compare(args)
    # A file with mistakes ends the command before the diagnosis, which takes some seconds.
    experiment = load_experiment(args.file, args.overrides, only=args.only) if args.file else None
    points = experiment.chosen if experiment else ()
    machine = diagnose()
    needs = needs_of(points, machine, args.results) if points else None
    if args.json:
        data = machine.data()
        if needs:
            data["needs"] = {"file": args.file, "unmet": needs.unmet, "notes": needs.notes, "gpus": needs.gpus}
        print(json.dumps(data, indent=1))
    else:
        print("\n".join(_lines(machine)))
        if needs:
            print("\n".join(["", *_needs_lines(args.file, needs)]))
    return ExitStatus.UNMET if needs and needs.unmet else ExitStatus.DONE


def _compare(args: argparse.Namespace) -> int:
    """Print the comparison of hosts; return 0, or `ExitStatus.UNMET` if something is wrong with one."""
    from hpcps.launch.doctor.comparison import differences
    from hpcps.launch.doctor.hosts import examine

    if args.file or args.overrides or args.only:
        raise LaunchError(
            "--hostfile compares hosts, and FILE, --set and --only are about this machine: use two commands"
        )
    hosts = read_hostfile(Path(args.hostfile)) if args.hostfile else _hosts_of_job()
    print(f"examining {len(hosts)} host{'s' * (len(hosts) != 1)} ...", file=sys.stderr, flush=True)
    report = examine(hosts, args.results)
    wrong = differences(report)
    if args.json:
        print(json.dumps(report.data() | {"problems": [asdict(each) for each in wrong]}, indent=1))
    else:
        print("\n".join(hosts_table(report, wrong)))
    return ExitStatus.UNMET if wrong else ExitStatus.DONE


def _hosts_of_job() -> tuple[Host, ...]:
    job = allocation(TIMEOUT)
    if not job.hosts:
        why = job.problem or "this is no job"
        raise LaunchError(f"--hostfile without a file takes the hosts of the batch job: {why}; name a host file")
    return job.hosts


def _lines(machine: Diagnosis) -> Iterator[str]:
    data = machine.data()
    rows = {
        "hpcps": f"{data['hpcps']}, Python {data['python']} ({data['interpreter']}), host {data['host']}",
        "MPI": _mpi(machine),
        "launcher": f"{machine.mpi.launcher}: {machine.mpi.mpirun}" if machine.mpi.launcher else "none",
        "CUDA-aware": f"{_yes(machine.mpi.cuda_aware)}: {machine.mpi.determined}",
        "GPUs": _gpus(machine),
        "MPS": _mps(machine),
        "device buffers": _buffers(machine),
        "cores": _cores(machine),
        "shared memory": _memory(machine),
        "kernels": _kernels(machine),
        "software": _software(machine),
        "batch system": machine.batch.text,
    }
    for name, text in rows.items():
        first, *rest = text.splitlines() or [""]
        yield f"{name:<14} {first}"
        yield from (f"{'':<14} {line}" for line in rest)


def _needs_lines(file: str, needs: NeedsCheck) -> Iterator[str]:
    count = len(needs.unmet)
    if not count:
        yield f"{file}: this machine meets its needs"
    else:
        yield f"{file}: {count} need{'s are' if count > 1 else ' is'} not met here"
    yield from (f"  {need}" for need in needs.unmet)
    yield from (f"  note: {note}" for note in needs.notes)
    yield from (f"  GPUs on {line}" for line in needs.gpus)


def _yes(value: bool | None) -> str:
    return "not known" if value is None else "yes" if value else "no"


def _mpi(machine: Diagnosis) -> str:
    mpi = machine.mpi
    lines = [f"{mpi.library} (mpi4py {mpi.mpi4py}{', ' if mpi.path else ''}{mpi.path})"] if mpi.library else []
    lines.append("two ranks start and exchange a message" if mpi.works else f"does not work: {mpi.problem}")
    return "\n".join(lines)


def _gpus(machine: Diagnosis) -> str:
    facts = machine.gpus
    if "problem" in facts:
        return f"not known: {facts['problem']}"
    why = "nvidia-smi lists none" if facts["driver"] else "there is no NVIDIA driver"
    return "\n".join(facts["found"]) or f"none: {why}"


def _mps(machine: Diagnosis) -> str:
    facts = machine.mps
    if "problem" in facts:
        return f"not known: {facts['problem']}"
    return f"works ({facts['control']})" if facts["usable"] else f"not usable: {facts['why']}"


def _buffers(machine: Diagnosis) -> str:
    facts = machine.buffers
    how = "MPI takes device memory" if facts["auto"] == "direct" else "copies go through the host"
    return "\n".join(filter(None, [f"{facts['auto']}: {how}", facts["direct"]]))


def _cores(machine: Diagnosis) -> str:
    cores = machine.cores
    limit = "no limit of the control group" if cores.cgroup is None else f"control group {cores.cgroup:g}"
    return f"{cores.usable:g} usable: {cores.machine} in all, affinity {cores.affinity}, {limit}"


def _memory(machine: Diagnosis) -> str:
    facts = machine.memory
    if "problem" in facts:
        return f"not known: {facts['problem']}"
    can = "processes read each other's memory in place"
    if facts["shortage"]:
        can = f"no shared memory: {facts['shortage']}"
    elif not facts["in_place"]:
        can = "processes cannot read each other's memory: updates and models are sent"
    size = facts["shm"] and f"/dev/shm: {Space(**facts['shm'])}"
    if size and machine.mpi.shm is not None:
        size += f"; MPI takes {machine.mpi.shm / 1e6:.1f} MB for each process"
    return "\n".join(filter(None, [can, size, facts["shm_problem"] and f"/dev/shm: {facts['shm_problem']}"]))


def _kernels(machine: Diagnosis) -> str:
    facts = machine.kernels
    if facts.get("problem"):
        return f"cannot be used: {facts['problem']}"
    if not facts["numba"]:
        return "none: numba is not installed; rules run without them: pip install 'hpcps[kernels]'"
    state = "compiled" if facts["cached"] else "not compiled yet: `python -m hpcps.numerics.kernels` compiles them"
    return f"numba {facts['numba']}, {state}"


def _software(machine: Diagnosis) -> str:
    facts = machine.software
    if "problem" in facts:
        return f"not known: {facts['problem']}"
    return ", ".join(f"{name} {found}" for name, found in facts.items() if isinstance(found, str))
