"""A server and its standby: two processes that handle the same events in the same order.

A role is a function of its events, whose names `order` in its record has. So a server tells its standby these names,
and each sender of a message sends it to both. Nothing leaves the server (a message, a line, a file) before its standby
has got all that it follows from. A standby that takes the place of its server therefore continues what others have
seen. A new process gets the state of the server between two events, and is its standby from then on.

- `seats`: makes the driver of a role, of a server that has a standby, or of a standby
- `primary`: the driver of a server that has a standby
- `standby`: the driver of a standby, which takes the place of the server when it is lost
- `journal`: the names of the events that only a standby gets
- `post`: what has come for a standby, which it takes in the order of its server
- `image`: the state of a server between two events, for a new standby
"""
