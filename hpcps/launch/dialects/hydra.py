"""MPICH's Hydra: `mpirun -f conf.hosts -configfile conf`."""

from __future__ import annotations

from hpcps.launch.dialects.job import Job, Launch, hosts_file, program, segments

LONGEST = 16_000
"""Bytes; the joined text of a configfile may be damaged beyond 16 KiB."""


def render(job: Job) -> Launch:
    """Write a segment per run of ranks of one role; the hosts are in a file of their own, in rank order.

    Hydra takes the first `-host` it sees for all segments. Up to MPICH 4.2 it reads the file as one line, in which only
    ` :` parts the segments; later versions do not mind it.
    """
    conf = " :\n".join(f"-n {s.count} {program(job, s.role)}" for s in segments(job.plan, by_host=False)) + "\n"
    if len(conf.encode()) > LONGEST:
        conf = f"-n {len(job.plan.world)} {program(job)}\n"
    hosts, text = hosts_file(job)
    command = [str(job.mpirun), *job.options]
    if job.local:
        # Within a batch job Hydra would ask the batch system for a host of this name.
        command += ["-launcher", "fork"]
    elif job.agent:
        # `rsh`, not `ssh`: with that Hydra would pass options of ssh.
        command += ["-launcher", "rsh", "-launcher-exec", str(job.agent)]
    command += ["-f", str(hosts), "-configfile", str(job.configfile)]
    return Launch(job, {job.configfile: conf, hosts: text}, tuple(command))
