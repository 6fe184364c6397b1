"""The diagnosis of this machine: MPI, GPUs, cores, memory, software, the batch job, and the needs of a file.

`diagnosis` runs all probes at the same time. What may hang or crash runs in a child process with a deadline (`child`,
`ranks`). `needs` compares an experiment with the result.
"""
