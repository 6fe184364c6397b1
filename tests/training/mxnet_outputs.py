"""Computes a network with given parameters in MXNet: `python mxnet_outputs.py FOLDER/MODEL.npz`; for test_zoo.py.

`FOLDER/MODEL.mxnet.npz` gets the outputs and the gradient.
"""

import sys
from pathlib import Path

import numpy as np

from hpcps.data.base import Facts
from hpcps.registry import active
from hpcps.training.mxnet.framework import load_mxnet

mxnet = load_mxnet(1)
from hpcps.training.mxnet.flat import MxnetFlatModel  # noqa: E402


def without_dropout(block):
    if isinstance(block, mxnet.gluon.nn.Dropout):
        block._rate = 0


file = Path(sys.argv[1])
given = np.load(file)
facts = Facts(shape=given["images"].shape[1:], train=1, test=1)
model = MxnetFlatModel(active().of("models")[file.stem](), facts, mxnet.cpu())
model.network.apply(without_dropout)
model.parameters.write(given["parameters"])
model.statistics.write(given["statistics"])
images = mxnet.nd.array(given["images"])
model.update_twin()
tested = model.twin(images).asnumpy()
with mxnet.autograd.record():
    outputs = model.network(images)
    loss = -mxnet.nd.pick(mxnet.nd.log_softmax(outputs), mxnet.nd.array(given["labels"])).mean()
loss.backward()
np.savez(file.with_suffix(".mxnet.npz"), tested=tested, trained=outputs.asnumpy(), gradient=model.gradient.copy())
