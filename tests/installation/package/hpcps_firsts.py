"""A package of others with a rule."""

from typing import Literal

from hpcps.rules import Rule


class FirstUpdate(Rule):
    """The update of the first worker that sends one."""

    kind: Literal["first_update"] = "first_update"

    def aggregate(self, updates, context):
        return updates[0]
