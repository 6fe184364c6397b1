"""Local training: a learner for each backend, its schedule and its initial weights."""
