"""Traces: the activities of each process of a run, on one clock."""
