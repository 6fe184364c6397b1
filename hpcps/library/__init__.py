"""What a script or notebook calls: load, check and run experiments, read their results, train one worker.

- `experiment`: an experiment: load, check and run it, and read its results
- `content`: what a caller gives as an experiment: a file, a text or a dictionary
- `execution`: executes the unfinished runs, in this process or over `hpcps run`
- `submission`: submits runs as jobs, and the handles of these runs
- `progress`: a bar in a notebook or a terminal, lines in a log
- `tables`: the records of experiments as tables
- `learner`: one worker without servers
"""
