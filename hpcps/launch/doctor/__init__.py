"""The diagnosis of this machine: MPI, GPUs, cores, memory, software, the batch job, the needs of a file; other hosts.

`diagnosis` runs all probes at the same time. What may hang or crash runs in a child process with a deadline (`child`,
`ranks`). `needs` compares an experiment with the result. `hosts` examines the hosts of a launch, on each of which
`host_probe` runs, and `comparison` finds those that differ.
"""
