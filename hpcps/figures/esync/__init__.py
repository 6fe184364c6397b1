"""Figures that compare methods of training: accuracy by time, throughput, traffic and computing time."""
