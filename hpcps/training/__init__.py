"""Local training: a trainer for each backend, its schedule and its initial weights.

- `build`: builds the trainer of one role
- `evaluation`: evaluates models on the test set
- `mxnet/`: the trainer in MXNet
- `pytorch/`: the trainer in PyTorch
- `schedule`: the learning rate of each step
- `trainer`: the interface between roles and backends
- `trial`: tries the components of runs before anything starts
- `weights`: the initial weights, the same for every backend
"""
