"""Simulate the timing of a cluster for a run in one process: shared cores and links, costs of tasks, virtual clock."""
