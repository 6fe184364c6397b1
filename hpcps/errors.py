"""The errors that a person can correct; the command line prints them without a traceback."""


class HpcpsError(Exception):
    """An error for users: the message says what is wrong, where, and what to do."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: the message says everything, so there is no traceback."""
        return [f"{type(self).__name__}: {self}"]


class SpecError(HpcpsError):
    """The experiment file (or a `--set` or `--only` on the command line) is wrong."""


class UnknownComponentError(SpecError, KeyError):
    """No component has this name; the message lists the names."""

    __str__ = HpcpsError.__str__  # a KeyError quotes its message


class LaunchError(HpcpsError):
    """The processes cannot be placed or started as requested."""


class DataError(HpcpsError):
    """A data file is missing, truncated or corrupt."""


class RunError(HpcpsError):
    """A run failed after its start; the message names role, host and round if they are known."""


class CallbackError(RunError):
    """A callback of a script or notebook raised an exception, which ended the run; that exception is the cause."""


class InputError(HpcpsError):
    """The content of a file or text is invalid.

    Attributes:
        where: the file, and the line if it is known.
        reason: what is wrong with it.
    """

    def __init__(self, where: object, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = str(where)
        self.reason = reason
