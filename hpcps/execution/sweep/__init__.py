"""Execute many runs, one launch after another or several at a time; failures do not stop the others.

It runs in the parent process, `hpcps run`, and starts launches. Runs whose transport is `inproc` need no launch: the
parent process executes them. With `--jobs`, a child process for each slot does this work for one batch.

- `sweep_run`: executes the points in their order until each is done or has failed
- `claims`: the runs that are left for this process, and what `hpcps run` refuses
- `batch`: points that run back to back in one launch or process
- `resizing`: another number of workers for a run that is at the end of an epoch
- `slots`: several batches at a time, each on its share of the cores
- `search`: the rungs of a search, and the batches of proposed configurations
- `proposals`: the configurations that Optuna proposes from the scores of others
"""
