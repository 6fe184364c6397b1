"""Arrays, blocks and updates, with which rules, attacks and roles compute; this package knows no messages and no files.

- `layout`: the model as one flat vector: blocks, masks of blocks, and server shards
- `updates`: the updates of one round as they were received, and the result of an operation on them
- `operations`: the operations on updates of which rules consist; chooses numpy, compiled kernels or torch
- `definitions`: the operations on updates with numpy, which define their results
- `blocks`: tiles that fit a cache, sums over blocks, and products with a reference vector
- `kernels/`: the operations on updates, compiled, with the results of the definitions
- `mixture`: rows that are weighted sums of updates, and operations on one range of coordinates after another
- `tensors`: the operations on updates with torch
- `arrays`: numpy arrays and torch tensors: conversion, and what both have in common
- `vectors`: vectors in the memory of a device, for code that is written for arrays; sent blocks as one payload
- `exact_sum`: sums that do not depend on the order of addition
- `coding/`: loops of compressors over values: conversions, selections, random levels, products of matrices
- `state`: the state that a process saves
"""
