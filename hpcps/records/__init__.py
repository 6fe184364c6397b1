"""What runs leave behind: records, checkpoints, provenance, and the tables made of them.

- `acceptance`: the share of pairs that a rule accepted, and whether a run stalled
- `attempts`: the attempts of a process in its record, to compare with another execution
- `bypass`: which attacked and which honest blocks entered the model
- `checkpoint`: the checkpoints of a run
- `collect`: one long table of all records of an experiment
- `display`: shows the progress of runs
- `esync_log`: the logs of the published ESync code, as a table
- `evaluation`: the file of an evaluation, and how often the process that evaluates ended
- `experiment_runs`: the runs of an experiment: of its file, its sweeps and its folder
- `export`: writes statistics over the seeds for a paper, CSV files, and event files of TensorBoard
- `failure`: the processes of a run that failed
- `files`: writes files atomically, and says why it cannot; reads JSON lines that may be incomplete
- `forecast`: the progress of a sweep and the remaining time
- `inventory`: the files of a finished run
- `locate`: finds the results that a name, a file or a folder means
- `participation`: how often each worker was in the rounds of a run with a quorum
- `provenance`: the provenance of a run: code, packages, machine
- `run_directory`: the folder of one run
- `search`: the scores of the runs of a search
- `status`: the progress of runs, read from their files
- `step_state`: the local steps of the roles of a run with a policy
- `sweep`: the sweep that a launch belongs to
- `table`: the columns of the long table, and Parquet
- `totals`: sums over the lines of a run
- `trace/`: the activities of each process on one clock
- `variants`: the differences between the runs of an experiment
- `writer`: one process's record of one run
"""
