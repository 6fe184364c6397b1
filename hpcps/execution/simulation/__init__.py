"""Simulate the timing of a cluster for a run in one process: shared cores and links, costs of tasks, virtual clock.

- `driver`: executes the roles of a run in one process, in virtual time
- `process`: the effects of one role, with their durations
- `failures`: kills processes at the times of the experiment, and starts replacements
- `sharing`: the queue of events, and resources that processes share: cores of hosts, links between hosts
- `calibration`: fits the costs of tasks to the records of an MPI run
- `replay`: repeats an MPI run in virtual time, to compare its duration with the simulated one
- `__main__`: `python -m hpcps.execution.simulation RUN` prints a `[simulation]` table
"""
