"""Drives roles: owns their clocks, files and devices."""
