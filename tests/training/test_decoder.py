"""The decoder: its size, what its outputs depend on, and the loss and accuracy of each next byte."""

import re

import numpy as np
import pytest
import torch
from torch.nn import functional
from training_examples import make_run

from hpcps.registry import active
from hpcps.training.build import build_trainer

DECODER = active().of("models")["decoder"]
SIZES = {(3, 128): 630_731, (4, 256): 3_230_795, (12, 256): 9_548_875}
SMALL = {"name": "decoder", "layers": 2, "width": 32, "heads": 2}


def trainer(**data):
    data = {"name": "text", "length": 32, "limit": 200, "test_limit": 20, "shards": 2, **data}
    run = make_run(data, model=SMALL, optimizer={"name": "adamw", "lr": 0.01}, batch_size=10)
    return build_trainer(run, "worker", 0)


@pytest.mark.parametrize("keys", SIZES)
def test_it_has_the_documented_number_of_parameters(keys):
    layers, width = keys
    with torch.device("meta"):
        network = DECODER(layers=layers, width=width).build((128,), 75)
    count = sum(one.numel() for one in network.parameters())
    inside = layers * (12 * width * width + 13 * width)
    assert count == SIZES[keys] == inside + (75 + 128) * width + 2 * width + 75 * width + 75
    assert f"{count:,}" in re.sub(r"\s+", " ", DECODER.__doc__)


def test_an_output_depends_on_the_bytes_up_to_its_position_only():
    torch.manual_seed(0)
    network = DECODER(layers=2, width=32, heads=2).build((16,), 20)
    codes = torch.randint(0, 20, (1, 16)).float()
    before = network(codes)
    for place in (0, 7, 15):
        changed = codes.clone()
        changed[0, place] = (changed[0, place] + 1) % 20
        differs = (network(changed) != before).any(1)
        assert differs.tolist() == [n >= place for n in range(16)]


def test_the_loss_and_the_accuracy_are_means_over_all_next_bytes():
    ours = trainer()
    evaluation = ours.evaluate()
    images, labels = zip(*ours._test_set.batches(), strict=True)
    with torch.no_grad():
        outputs = torch.cat([ours._model.network(torch.from_numpy(each)) for each in images])
    targets = torch.from_numpy(np.concatenate(labels))
    assert len(targets) == evaluation.samples == 20 * 32
    assert evaluation.loss == pytest.approx(float(functional.cross_entropy(outputs, targets)), rel=1e-6)
    assert evaluation.accuracy == int((outputs.argmax(1) == targets).sum()) / (20 * 32)
    assert sum(map(sum, evaluation.confusion)) == 20 * 32
    progress = ours.train(1)
    assert (progress.steps, progress.samples) == (1, 10 * 32)


def test_it_learns_the_text():
    ours = trainer()
    before = ours.evaluate().loss
    ours.train(60)
    codes = active().of("datasets")["text"]().corpus.codes
    shares = np.bincount(codes) / len(codes)
    assert ours.evaluate().loss < -(shares * np.log(shares)).sum() < before
