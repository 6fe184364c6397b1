"""Simulate the timing of a cluster for a run in one process: shared cores and links, costs of tasks, virtual clock.

- `__main__`: `python -m hpcps.execution.simulation RUN` prints a `[simulation]` table
- `calibration`: fits the costs of tasks to the records of an MPI run
- `driver`: executes the roles of a run in one process, in virtual time; start here
- `event_queue`: the queue of events in virtual time
- `process`: the effects of one role, with their durations
- `replay`: repeats an MPI run in virtual time, to compare its duration with the simulated one
- `sharing`: resources that processes share: the cores of a host, links between hosts
"""
