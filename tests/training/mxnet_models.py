"""Prints the number of trainable parameters of every model of the MXNet backend, as JSON; for test_backends.py.

Shapes are inferred and nothing is computed: the largest has 68 million parameters.
"""

import json

import numpy as np

from hpcps.data.sets import Cifar10
from hpcps.registry import active
from hpcps.training.mxnet.framework import load_mxnet

mxnet = load_mxnet(1)


def trainable(name):
    facts = Cifar10.facts
    network = active().of("models")[name]().build_gluon(facts.shape, facts.classes)
    network.infer_shape(mxnet.nd.zeros((1, *facts.shape)))
    shapes = [one.shape for one in network.collect_params().values() if one.grad_req != "null"]
    assert all(0 not in shape for shape in shapes), name
    return sum(int(np.prod(shape)) for shape in shapes)


print(json.dumps({name: trainable(name) for name, model in active().of("models").items() if "mxnet" in model.backends}))
