"""Hosts, placement, launchers and supervision: from a run to its processes."""
