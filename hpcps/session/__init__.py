"""Exchanges tensors between the processes of a person's own script, and combines them.

- `__main__`: the program of every rank of a launch
- `aggregator`: combines its parts of all tensors, without I/O
- `buckets`: the parts of tensors that one aggregator combines, in a row in one buffer of each process
- `combination`: how the rows of a bucket become results
- `compressed`: tensors that travel encoded
- `elements`: the types of elements, and how they are added
- `join`: how a process joins the session of its launch, and what it does at its end
- `member`: a process: its aggregator and its participant, over any transport
- `participant`: sends the tensors of a worker and takes the results, without I/O
- `record`: the record of a process
- `reduction`: how tensors are combined: by their sum or mean, or by a rule
- `session`: the exchange as a script sees it, with a thread that makes progress; start here
- `tensors`: declared tensors, and their parts
- `trace`: the trace of a process
- `whole`: steps that are combined as a whole, with simulated attackers
"""
