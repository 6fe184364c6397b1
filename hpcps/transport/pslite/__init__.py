"""Nodes that use the protocol of dmlc/ps-lite over ZeroMQ; they work with each other and with C++ nodes.

- `address`: chooses the address that a node binds
- `component`: the transport `pslite` of an experiment file
- `deaths`: detects dead nodes
- `dropped`: counts and logs dropped messages
- `encoding`: encodes and decodes meta frames
- `incoming`: incoming TCP connections with ZeroMQ's protocol
- `membership`: the nodes of the cluster as one node knows them
- `memory`: memory allocation for large messages
- `meta`: the metadata of a message
- `node`: a node, from start to end; start here
- `payload`: the data frames of a key-value message
- `process_group`: the process group of the nodes of a launch
- `receiver`: the receiving thread of a node
- `registry`: the scheduler's list of nodes
- `resender`: acknowledgements and duplicates
- `scheduling`: the work of a scheduler
- `sender`: sends messages to peers
- `settings`: the settings, from the variables of ps-lite
- `sockets`: the sockets of a node
- `texts`: collects a text from each process and sends the list to all
- `transport`: messages of hpcps over ps-lite nodes
"""
