"""Carries messages between roles; knows nothing of what they mean."""
