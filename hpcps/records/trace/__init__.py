"""Traces: the activities of each process of a run, on one clock.

- `chrome`: merges the trace of a run into one file for ui.perfetto.dev
- `clocks`: the offsets between the clocks of the hosts
- `reader`: reads the traces of all processes as one data frame
- `spans`: the binary format of an activity
- `tracer`: records the activities of one process
"""
