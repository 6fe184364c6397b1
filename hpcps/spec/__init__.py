"""The experiment file: its schema, its validation, the expansion of its sweep, and the identity of a run."""
