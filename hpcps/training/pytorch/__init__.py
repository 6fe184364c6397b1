"""The trainer in PyTorch.

- `device`: the device of a network, the order of work on it, and copies to and from the host
- `evaluator`: evaluates networks on the test set
- `flat`: a network whose parameters and gradients are views of two flat vectors
- `network`: builds the network of a model
- `optimizers`: optimizers on one flat vector
- `step`: one pass of a network over a batch
- `trainer`: the trainer; start here
"""
