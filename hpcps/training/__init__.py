"""Local training: a learner for each backend, its schedule and its initial weights.

- `build`: builds the learner of one role
- `learner`: the interface between roles and backends
- `mxnet/`: the learner in MXNet
- `pytorch/`: the learner in PyTorch
- `schedule`: the learning rate of each step
- `trial`: tries the components of runs before anything starts
- `weights`: the initial weights, the same for every backend
"""
