"""The trainer in PyTorch."""
