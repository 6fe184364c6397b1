"""Drive roles: read their clocks, write their files, run their computations."""
