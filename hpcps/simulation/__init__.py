"""Modelled time for a run in one process: cores and links as shared resources, what tasks cost, and the clock."""
