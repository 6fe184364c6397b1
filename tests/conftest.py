"""Puts this folder on the path: `from installed import BACKEND` in any test."""
