"""Nodes that use the protocol of dmlc/ps-lite over ZeroMQ; they work with each other and with C++ nodes.

- `component`: the transport `pslite` of an experiment file
- `encoding`: encodes and decodes meta frames
- `incoming`: incoming TCP connections with ZeroMQ's protocol
- `membership`: the nodes of the cluster as one node knows them, and which are dead
- `meta`: the metadata of a message
- `node`: a node, from start to end; start here
- `process_group`: the process group of the nodes of a launch
- `receiver`: the receiving thread of a node
- `scheduling`: the scheduler: its list of nodes, and its work
- `sender`: sends messages to peers, again if they are not acknowledged
- `settings`: the settings, from the variables of ps-lite
- `sockets`: the address that a node binds, and its sockets
- `transport`: messages of hpcps over ps-lite nodes
"""
