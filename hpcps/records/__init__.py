"""What runs leave behind: records, checkpoints, provenance, and the tables made of them.

- `run_directory`: the folder of one run
- `writer`: one process's record of one run
- `checkpoint`: the checkpoints of a run
- `failure`: the processes of a run that failed
- `provenance`: the provenance of a run: code, packages, machine
- `files`: writes files atomically, and says why it cannot; reads JSON lines that may be incomplete
- `attempts`: the attempts of a process in its record, to compare with another execution
- `locate`: finds the results that a name, a file or a folder means
- `experiment_runs`: the runs of an experiment: of its file, its sweeps and its folder
- `variants`: the differences between the runs of an experiment
- `sweep`: the sweep that a launch belongs to
- `collect`: one long table of all records of an experiment
- `table`: the columns of the long table, and Parquet
- `totals`: sums over the lines of a run
- `acceptance`: the share of pairs that a rule accepted, and whether a run stalled
- `bypass`: which attacked and which honest blocks entered the model
- `participation`: how often each worker was in the rounds of a run with a quorum
- `evaluation`: the file of an evaluation, and how often the process that evaluates ended
- `step_state`: the local steps of the roles of a run with a policy
- `status`: the progress of runs, read from their files
- `forecast`: the progress of a sweep and the remaining time
- `display`: shows the progress of runs
- `inventory`: the files of a finished run
- `export`: writes statistics over the seeds for a paper, CSV files, and event files of TensorBoard
- `search`: the scores of the runs of a search
- `esync_log`: the logs of the published ESync code, as a table
- `trace/`: the activities of each process on one clock
"""
