"""Roles as state machines without I/O: an event in, effects out. They know no MPI, socket, file or clock.

"Following an update" in CONTRIBUTING.md lists the files that take an update from one worker to another, in order.
"""
