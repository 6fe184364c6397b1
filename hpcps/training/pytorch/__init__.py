"""The learner in PyTorch."""
