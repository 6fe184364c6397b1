"""Traces: the activities of each process of a run, on one clock.

- `tracer`: records the activities of one process
- `clocks`: the offsets between the clocks of the hosts
- `reader`: reads the traces of all processes as one data frame, and merges them for ui.perfetto.dev
"""
