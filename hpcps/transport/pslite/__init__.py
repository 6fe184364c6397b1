"""Nodes that speak the protocol of dmlc/ps-lite over ZeroMQ, with ours or with C++ ones at the other end."""
