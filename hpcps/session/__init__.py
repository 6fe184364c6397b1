"""Exchanges tensors between the processes of a person's own script, and combines them.

- `session`: the exchange as a script sees it, with a thread that makes progress
- `current`: the session of this process, and which front end has begun it
- `pending`: exchanges that a script has begun, their handles, and names for tensors without one
- `arrays`: exchanges of arrays of numpy, which front ends share
- `wrapped`: errors that a framework repeats in exceptions of its own
- `member`: a process: its aggregator and its participant, over any transport
- `participant`: sends the tensors of a worker and takes the results, without I/O
- `outbox`: what a process has to send, the most urgent first
- `aggregator`: combines its parts of all tensors, without I/O
- `tensors`: declared tensors, and their parts
- `sharding`: which aggregator combines each part of a tensor
- `buckets`: the parts of tensors that one aggregator combines, in a row in one buffer of each process
- `combination`: how the rows of a bucket become results
- `elements`: the types of elements, and how they are reduced
- `reduction`: how tensors are combined: by an operation such as the mean, by a rule, or only copied
- `gathering`: allgathers, to which each process gives as many rows as it has
- `compressed`: tensors that travel encoded
- `whole`: steps that are combined as a whole, with simulated attackers
- `join`: how a process joins the session of its launch
- `ending`: how a process tells the others how its script ends
- `record`: the record of a process
- `commits`: the files of what a script has committed, from which it goes on when it is started again
- `trace`: the trace of a process
- `__main__`: the program of every rank of a launch
"""
