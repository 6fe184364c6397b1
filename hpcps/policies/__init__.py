"""Policies of local steps: how many local steps each role takes in a synchronous round, by measured speeds."""

from hpcps.policies.local_steps import DyLU, ESync, Policy, RoleProgress

__all__ = ["DyLU", "ESync", "Policy", "RoleProgress"]
