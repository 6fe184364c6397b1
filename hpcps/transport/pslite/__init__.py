"""Nodes that use the protocol of dmlc/ps-lite over ZeroMQ; they work with each other and with C++ nodes.

- `component`: the transport `pslite` of an experiment file
- `deaths`: detects dead nodes
- `dropped`: counts and logs dropped messages
- `encoding`: encodes and decodes meta frames, and the data frames of a key-value message
- `incoming`: incoming TCP connections with ZeroMQ's protocol
- `membership`: the nodes of the cluster as one node knows them
- `meta`: the metadata of a message
- `node`: a node, from start to end; start here
- `process_group`: the process group of the nodes of a launch
- `receiver`: the receiving thread of a node
- `resender`: acknowledgements and duplicates
- `scheduling`: the scheduler: its list of nodes, and its work
- `sender`: sends messages to peers
- `settings`: the settings, from the variables of ps-lite
- `sockets`: the address that a node binds, and its sockets
- `transport`: messages of hpcps over ps-lite nodes
"""
