"""PALS, the `mpiexec` of Cray machines: one command line."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from hpcps.launch.dialects.job import Job, Launch, Segment, program, segments


def render(job: Job) -> Launch:
    """Join a segment per role and number of ranks on a host with ` : `; there is no file that PALS is known to read.

    It binds every rank to one core unless told otherwise. In a batch job it reaches the other hosts by itself, so
    `job.agent` is not needed.
    """
    program(job)  # refuses what would need quotes in the line that we print
    bare = replace(job, variables={})
    settings = [word for name, value in job.variables.items() for word in ("--env", f"{name}={value}")]
    command = [str(job.mpirun), "--cpu-bind", "none", *job.options]
    alike = groupby(segments(job.plan, by_host=True), lambda segment: (segment.role, segment.count))
    for number, ((role, count), group) in enumerate(alike):
        parts: list[Segment] = list(group)
        command += [":"] if number else []
        command += ["-n", str(count * len(parts)), "--ppn", str(count)]
        command += [] if job.local else ["--hosts", ",".join(segment.host for segment in parts)]
        command += [*settings, *program(bare, role).split()]
    return Launch(job, {}, tuple(command))
