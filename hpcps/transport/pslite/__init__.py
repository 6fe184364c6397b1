"""Nodes that use the protocol of dmlc/ps-lite over ZeroMQ; they work with each other and with C++ nodes."""
