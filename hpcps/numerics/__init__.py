"""Arrays, blocks and updates, with which rules, attacks and roles compute; this package knows no messages and no files.

- `arrays`: numpy arrays and torch tensors: conversion, and what both have in common
- `blocks`: tiles that fit a cache, sums over blocks, and products with a reference vector
- `coding/`: loops of compressors over values: conversions, selections, random levels, products of matrices
- `definitions`: the operations on updates with numpy, which define their results
- `exact_sum`: sums that do not depend on the order of addition
- `kernels/`: the operations on updates, compiled, with the results of the definitions
- `layout`: the model as one flat vector: blocks, masks of blocks, and server shards
- `mixture`: rows that are weighted sums of updates, and operations on one range of coordinates after another
- `operations`: the operations on updates of which rules consist; chooses numpy, compiled kernels or torch
- `state`: the state that a process saves
- `tensors`: the operations on updates with torch
- `updates`: the updates of one round as they were received, and the result of an operation on them
- `vectors`: vectors in the memory of a device, for code that is written for arrays; sent blocks as one payload
"""
