"""The description of a value on a server; a worker compares it with its own first value."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from hpcps.errors import RunError


@dataclass(frozen=True)
class ValueDescription:
    """A value, or the part of it on one server.

    Attributes:
        size: the number of elements; 0 if the server has no value for the key.
        dtype: their type.
        source: the worker whose push was the first value.
    """

    size: int
    dtype: str
    source: str

    def encode(self) -> bytes:
        """Return the body of the answer that has this description."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(body: bytes) -> ValueDescription:
        """Return the description in an answer.

        Raises:
            RunError: the body has none.
        """
        try:
            fields = json.loads(body)
            return ValueDescription(int(fields["size"]), str(fields["dtype"]), str(fields["source"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RunError(f"a server answers with {body[:100]!r}, which does not describe a value") from error

    def __str__(self) -> str:
        return f"{self.size} of {self.dtype}"


NO_VALUE = ValueDescription(0, "", "")
"""The description of a key without a value."""
