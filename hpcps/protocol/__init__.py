"""What roles say to each other: messages, the roster of roles, partitions, and the schedule of a run."""
