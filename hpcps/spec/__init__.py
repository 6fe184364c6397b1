"""The experiment file: its schema, its validation, the expansion of its sweep, and the identity of a run.

- `cautions`: warnings about valid settings that are probably not intended
- `checks/`: keys that are valid separately but not together
- `device_buffers`: which runs can keep updates and models in the memory of devices
- `draft`: the points of a file before they are validated
- `file_schema`: the JSON Schema of experiment files
- `heterogeneity`: the keys of artificial differences in speed
- `identity`: the id of a run, a hash, and changes of the code that change results
- `keys`: the keys of an experiment file, for messages and the reference
- `label`: short names of points
- `load`: reads a file and expands it into its runs; start here
- `locate`: the line of each key in a TOML text
- `mistakes`: all mistakes of a file, with their lines
- `optimization`: the keys of the optimizer of local steps, of its learning rate, and of asynchronous training
- `overrides`: `--set key=value` and `--only SELECTOR`
- `plugins`: the plugin files that an experiment names
- `presets`: the keys that `fidelity` sets
- `problems`: mistakes in a run's values, as messages
- `reference`: generates the reference of the keys
- `schema`: the keys of one run
- `search`: the keys of the `[search]` table, and the runs of the search
- `search_groups`: the points for which a search chooses values, and its results
- `settings`: the settings beside their defaults, for headings and reports
- `simulation`: the keys of simulated timing
- `sweep`: the tables `[[sweep]]`, `[[exclude]]` and `[[include]]`
- `transport`: the keys of every transport, and what a transport declares
- `tree`: nested tables by path
- `validate`: builds a run from nested tables
"""
