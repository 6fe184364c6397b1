"""Compares the rules and attacks of hpcps with those of other libraries, on the same inputs."""
