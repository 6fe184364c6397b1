"""Roles as state machines without I/O: an event in, effects out. They know no MPI, socket, file or clock."""
