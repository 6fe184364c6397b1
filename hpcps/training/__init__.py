"""Local training: a trainer for each backend, its schedule and its initial weights.

- `trainer`: the interface between roles and backends
- `build`: builds the trainer of one role
- `schedule`: the learning rate of each step
- `weights`: the initial weights, the same for every backend
- `evaluation`: evaluates models on the test set
- `pytorch/`: the trainer in PyTorch
- `mxnet/`: the trainer in MXNet
- `trial`: tries the components of runs before anything starts
"""
