"""What can go wrong that a person can put right; the command line prints these without a traceback."""


class HpcpsError(Exception):
    """An error for people: the message says what is wrong, where, and what to do."""


class SpecError(HpcpsError):
    """The experiment file (or a `--set` or `--only` on the command line) is wrong."""


class LaunchError(HpcpsError):
    """The processes cannot be placed or started as asked."""


class DataError(HpcpsError):
    """A data file is missing, truncated or corrupt."""


class RunError(HpcpsError):
    """A run failed after it had started; names role, host and round where they are known."""
