"""The trainer in PyTorch.

- `trainer`: the trainer
- `network`: builds the network of a model
- `flat`: a network whose parameters and gradients are views of two flat vectors
- `step`: one pass of a network over a batch
- `optimizers`: optimizers on one flat vector
- `evaluator`: evaluates networks on the test set
- `device`: the device of a network, the order of work on it, and copies to and from the host
"""
