"""The update of a worker, made in stages, each with a state of its own; `packer` calls them one after another.

- `packer`: the stages in their order
- `choice`: whether the worker takes part, and which blocks it sends
- `memory`: the difference of the local steps, and what is kept of earlier ones
- `attacker`: what a Byzantine worker does
- `partitions`: the partitions, each for one combiner
"""
