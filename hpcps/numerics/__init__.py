"""Arrays, blocks and updates, which every other package computes with; this package knows no messages and no files.

- `arrays`: converts numpy arrays and torch tensors
- `bits`: masks of blocks as hexadecimal numbers
- `blocks`: tiles that fit a cache, and sums over blocks
- `device/`: Triton kernels for updates on a GPU
- `exact_sum`: sums that do not depend on the order of addition
- `gram`: inner products of all pairs of updates
- `kernels/`: compiled code with the same results
- `layout`: the model as one flat vector: blocks and server shards
- `mixture`: rows that are weighted sums of updates
- `packing`: copies the sent blocks into a payload and back
- `products`: inner products with a reference vector
- `sorting`: sorts the values of each coordinate
- `state`: the state that a process saves
- `updates`: the updates of one round as they were received
- `vectors`: vectors in the memory of a device, for code that is written for arrays
- `weighted`: weighted sums of updates
"""
