"""Execute a recorded run again in one process, with the recorded order of events, and compare the records."""
