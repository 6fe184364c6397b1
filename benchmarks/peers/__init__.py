"""What is measured beside hpcps, each in an environment of its own: one program per peer."""
