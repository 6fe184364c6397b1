"""The `hpcps` command: a module per sub-command."""
