"""Prints the shapes of the tensors of every model of the MXNet backend, as JSON; for test_backends.py.

Shapes are inferred and nothing is computed: the largest has 68 million parameters.
"""

import json

from zoo import SIZES

from hpcps.registry import active
from hpcps.training.mxnet.framework import load_mxnet

mxnet = load_mxnet(1)


def shapes(model):
    """Return the shapes of the trainable tensors and those of the running statistics, in order."""
    size = SIZES.get(model.name, 32)
    network = model.build_gluon((model.channels or 1, size, size), 10)
    network.infer_shape(mxnet.nd.zeros((1, model.channels or 1, size, size)))
    tensors = list(network.collect_params().values())
    assert all(0 not in one.shape for one in tensors), model.name
    return (
        [one.shape for one in tensors if one.grad_req != "null"],
        [one.shape for one in tensors if one.name.endswith(("running_mean", "running_var"))],
    )


print(json.dumps({name: shapes(model()) for name, model in active().of("models").items() if "mxnet" in model.backends}))
