"""The update of a worker, made in stages, each with a state of its own; `packer` calls them one after another.

- `attacker`: what a Byzantine worker does
- `choice`: whether the worker takes part, and which blocks it sends
- `memory`: the difference of the local steps, and what is kept of earlier ones
- `packer`: the stages in their order; start here
- `partitions`: the partitions, each for one combiner
"""
