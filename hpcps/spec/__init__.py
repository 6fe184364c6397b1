"""The experiment file: its schema, its validation, the expansion of its sweep, and the identity of a run.

- `asynchronous`: the keys of asynchronous training
- `cautions`: warnings about valid settings that are probably not intended
- `checks/`: keys that are valid separately but not together
- `draft`: the points of a file before they are validated
- `exclude`: the `[[exclude]]` tables
- `file_schema`: the JSON Schema of experiment files
- `heterogeneity`: the keys of artificial differences in speed
- `identity`: the id of a run, a hash
- `include`: the `[[include]]` tables
- `keys`: the keys of an experiment file, for messages and the reference
- `label`: short names of points
- `load`: reads a file and expands it into its runs; start here
- `locate`: the line of each key in a TOML text
- `mistakes`: all mistakes of a file, with their lines
- `overrides`: `--set key=value`
- `plugins`: the plugin files that an experiment names
- `presets`: the keys that `fidelity` sets
- `problems`: mistakes in a run's values, as messages
- `reference`: generates the reference of the keys
- `revisions`: changes of the code that change the results of some runs
- `schema`: the keys of one run
- `selection`: `--only SELECTOR`
- `shared`: what the points of a file have in common
- `simulation`: the keys of simulated timing
- `sweep`: the `[[sweep]]` tables
- `tree`: nested tables by path
- `validate`: builds a run from nested tables
"""
