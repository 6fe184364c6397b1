"""The logs of the published ESync code, as a table beside those of own runs."""
