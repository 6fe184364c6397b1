"""Policies of local steps: how many local steps each role takes in a synchronous round, by measured speeds."""

from hpcps.policies.base import Policy, Standing
from hpcps.policies.dylu import DyLU
from hpcps.policies.esync import ESync

__all__ = ["DyLU", "ESync", "Policy", "Standing"]
