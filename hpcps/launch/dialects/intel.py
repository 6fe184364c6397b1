"""Intel MPI: `mpirun -configfile conf`."""

from __future__ import annotations

from hpcps.launch.dialects.hydra import LONGEST
from hpcps.launch.dialects.job import Job, Launch, hosts_file, program, segments


def render(job: Job) -> Launch:
    """Write a segment per host and role, each with its `-host`; a ` :` at the end of a line would be an error.

    Where that gets too long, one segment and a machine file do. `mpirun` is a script that looks for its helpers on
    PATH. In a PBS job it reaches the other hosts by itself, so `job.agent` is not needed.
    """
    lines = [f"-n {s.count} -host {s.host} {program(job, s.role)}\n" for s in segments(job.plan, by_host=True)]
    files = {job.configfile: "".join(lines)}
    command = [str(job.mpirun), *job.options]
    if job.local:
        command += ["-launcher", "fork"]
    if len(files[job.configfile].encode()) > LONGEST:
        files[job.configfile] = f"-n {len(job.plan.world)} {program(job)}\n"
        hosts, text = hosts_file(job)
        files[hosts] = text
        command += ["-machinefile", str(hosts)]
    command += ["-configfile", str(job.configfile)]
    return Launch(job, files, tuple(command), needs_path=job.mpirun.is_absolute())
