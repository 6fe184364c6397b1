"""Drive roles: read their clocks, write their files, run their computations.

A process of a launch executes `__main__`. `sweep/` is different: it runs in the parent process, `hpcps run`, and starts
launches.

- `__main__`: the program of every rank
- `bootstrap`: creates the process group of a launch
- `process`: one process of a launch: one run after another
- `process_context`: the role of one process in one run, and its trace
- `role_factory`: creates the roles of a run
- `role_driver`: executes the effects of a role and passes events to it
- `account`: writes the record lines of a role
- `stopwatch`: the time that a role spends on each kind of task, and the events that it gets later
- `background`: runs one task at a time in the background of a role
- `evaluation_process`: evaluates for the evaluator, in another process
- `resume`: the checkpoint from which a run resumes
- `resized_parts`: the parts of a checkpoint from which a run goes on with another number of workers
- `device_buffers`: chooses where the buffers of a run are
- `inprocess`: executes a whole run in one process
- `observer`: what a run tells an observer
- `reporter`: the observer that calls the callbacks of a run
- `tracking`: gives the records of runs under way to experiment trackers
- `recorded_run`: the settings of a recorded run, and the evaluation of its models
- `sweep/`: executes many runs: starts launches, repeats failed ones
- `standby/`: a server and its standby, which takes its place
- `replay/`: executes a recorded run again, and compares the records
- `simulation/`: simulates the timing of a cluster
"""
