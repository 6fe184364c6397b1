"""Nodes that use the protocol of dmlc/ps-lite over ZeroMQ; they work with each other and with C++ nodes.

- `node`: a node, from start to end
- `scheduling`: the scheduler: its list of nodes, and its work
- `membership`: the nodes of the cluster as one node knows them, and which are dead
- `settings`: the settings, from the variables of ps-lite
- `sockets`: the address that a node binds, and its sockets
- `meta`: the metadata of a message
- `encoding`: encodes and decodes meta frames
- `incoming`: incoming TCP connections with ZeroMQ's protocol
- `receiver`: the receiving thread of a node
- `sender`: sends messages to peers, again if they are not acknowledged
- `transport`: messages of hpcps over ps-lite nodes
- `standby`: the same for the two processes of a server
- `seats`: which of the two is the server
- `texts`: the texts of collective operations
- `process_group`: the process group of the nodes of a launch
- `component`: the transport `pslite` of an experiment file
"""
