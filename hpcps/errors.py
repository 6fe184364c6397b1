"""The errors that a person can correct, which are printed without a traceback; the text of any exception."""

from traceback import format_exception


class HpcpsError(Exception):
    """An error for users: the message says what is wrong, where, and what to do."""

    def __str__(self) -> str:
        """Return the message, which UTF-8 can encode."""
        return _encodable(Exception.__str__(self))

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


def text_of(error: BaseException) -> str:
    """Return the class and the message of an exception; of an error for users only the message, which says everything.

    The text exists for any exception, and UTF-8 can encode it; see `message_of`.
    """
    if isinstance(error, HpcpsError):
        return message_of(error)
    return ": ".join(filter(None, (type(error).__name__, message_of(error))))


def message_of(error: BaseException) -> str:
    """Return the message of any exception, without its class.

    The code of a user may raise an exception that cannot be turned into text, or whose text no file can hold, such as
    the name of a file that is not UTF-8. The message then says so, or has escapes in place of these characters.
    """
    try:
        return _encodable(str(error))
    except (Exception, SystemExit) as other:
        return f"its text cannot be made: its __str__() raised {type(other).__name__}"


def trace_of(error: BaseException) -> str:
    """Return the traceback of any exception, as Python prints it; only its text if there can be no traceback."""
    try:
        return _encodable("".join(format_exception(error)))
    except (Exception, SystemExit):
        return text_of(error)


def _encodable(text: str) -> str:
    return str.encode(text, errors="backslashreplace").decode()
