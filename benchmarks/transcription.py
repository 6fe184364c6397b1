"""The synchronous protocol of Figure 3 in one process, written from its description and without hpcps.

It is a second opinion on a curve: one validator, 16 workers, and the keys of `fidelity = "artifact"`. It writes a line
of JSON for each epoch: the accuracy with the validator's own BatchNorm statistics and with reestimated ones (both %),
the number of updates and the norm of the combined update of each round, and the norm of the weights.

`python benchmarks/transcription.py DATA [--rule trimmed_mean] [--seed 1] [--epochs 9] [--skipped zero|left_out]`

DATA is a folder with `cifar-10-batches-bin`. An epoch takes 100 to 165 s of a core, and on a slow machine up to
three times as long. With `--bfloat16` the networks compute in bfloat16, which takes about two thirds of that on
processors with such instructions, and many times as long on others.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

WORKERS, VALIDATOR, STEPS, BATCH = 16, 16, 8, 32
RATE, MOMENTUM, DECAY = 0.2, 0.9, 1e-4
PARTICIPATION, SKIPPED, ATTACKED, SCALE = 0.5, 0.2, 0.2, 6.0
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
DEVIATION = torch.tensor([0.2023, 0.1994, 0.2010]).view(1, 3, 1, 1)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x):
        inner = functional.relu(self.norm1(self.first(x)))
        return functional.relu(self.shortcut(x) + self.norm2(self.second(inner)))


class Network(nn.Sequential):
    """CIFAR ResNet-20 v1; there is no ReLU after the first normalisation."""

    def __init__(self):
        blocks, inputs = [], 16
        for outputs, stride in ((16, 1), (32, 2), (64, 2)):
            for number in range(3):
                blocks.append(Block(inputs, outputs, stride if number == 0 else 1))
                inputs = outputs
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
        super().__init__(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), *blocks, *head)


def initial_network():
    network = Network().to(memory_format=torch.channels_last)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network


def read(folder, names):
    records = np.concatenate([np.fromfile(folder / f"{name}.bin", np.uint8).reshape(-1, 3073) for name in names])
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(records[:, 0].astype(np.int64))


def normalised(images):
    return ((images.float() / 255 - MEAN) / DEVIATION).contiguous(memory_format=torch.channels_last)


def combine(rule, rows, reference):
    """Combine the updates `rows` of one block by a rule."""
    n = len(rows)
    if rule == "zeno":
        square = (reference**2).sum()
        fits = [bool((u * reference).sum() > -0.001 * square and (u**2).sum() < 1.6 * square) for u in rows]
        return rows[torch.tensor(fits)].mean(0) if any(fits) else torch.zeros_like(reference)
    if rule == "average":
        return rows.mean(0)
    if n <= 2:
        return torch.zeros_like(reference)
    ordered = rows.sort(0).values
    b = int(min((n - 2) // 2, 0.2 * n)) if rule == "trimmed_mean" else int(max(1, 0.2 * n))
    middle = ordered[b : n - b].mean(0)
    if rule == "trimmed_mean":
        return middle
    nearest = (rows - middle).abs().argsort(0)[: n - b]
    return rows.gather(0, nearest).mean(0)


class Simulation:
    def __init__(self, options):
        self.options = options
        folder = Path(options.data) / "cifar-10-batches-bin"
        self.images, self.labels = read(folder, [f"data_batch_{k}" for k in range(1, 6)])
        self.test_images, self.test_labels = read(folder, ["test_batch"])
        torch.manual_seed(options.seed)
        self.batches = torch.Generator().manual_seed(options.seed)
        self.choices = np.random.default_rng(options.seed)
        self.networks = [initial_network() for _ in range(WORKERS + 1)]
        self.parameters = [list(network.parameters()) for network in self.networks]
        self.momenta = [[torch.zeros_like(p) for p in ps] for ps in self.parameters]
        self.norms = [m for m in self.networks[VALIDATOR].modules() if isinstance(m, nn.BatchNorm2d)]
        self.size = len(self.labels) // (WORKERS + 1)
        self.orders = [None] * (WORKERS + 1)
        self.steps = 0
        self.give_model()

    @torch.no_grad()
    def give_model(self, residuals=None):
        """Give the validator's model to all workers, which add their residuals; measure the next updates from there."""
        for k in range(WORKERS):
            for j, (own, new) in enumerate(zip(self.parameters[k], self.parameters[VALIDATOR], strict=True)):
                own.copy_(new if residuals is None else new + residuals[k][j])
        self.base = [[p.detach().clone() for p in ps] for ps in self.parameters]

    def batch(self, k, number):
        if number == 0:
            self.orders[k] = k * self.size + torch.randperm(self.size, generator=self.batches)
        chosen = self.orders[k][number * BATCH : (number + 1) * BATCH]
        padded, every = functional.pad(self.images[chosen], (4, 4, 4, 4)), torch.arange(32)
        down, right = (torch.randint(0, 9, (BATCH,), generator=self.batches) for _ in range(2))
        flips = torch.rand(BATCH, generator=self.batches) < 0.5
        columns = right[:, None] + torch.where(flips[:, None], 31 - every, every)
        rows = down[:, None] + every
        picture, plane = torch.arange(BATCH)[:, None, None, None], torch.arange(3)[None, :, None, None]
        cut = padded[picture, plane, rows[:, None, :, None], columns[:, None, None, :]]
        return normalised(cut), self.labels[chosen]

    def outputs(self, k, images):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bfloat16):
            return self.networks[k](images).float()

    def step(self, k, number):
        """Take a local step; the validator takes one if its rule has a reference, and in the run's first step."""
        images, labels = self.batch(k, number)
        self.networks[k].train()
        loss = functional.cross_entropy(self.outputs(k, images), labels)
        if k == VALIDATOR and self.options.rule != "zeno" and self.steps:
            return
        gradients = torch.autograd.grad(loss, self.parameters[k])
        with torch.no_grad():
            for gradient, p, m in zip(gradients, self.parameters[k], self.momenta[k], strict=True):
                decayed = gradient + DECAY * p
                m.mul_(MOMENTUM).add_(decayed)
                p.sub_(decayed + MOMENTUM * m, alpha=RATE)

    @torch.no_grad()
    def round(self):
        """Exchange the updates; return how many there were, and the norm of what they were combined to."""
        present = [k for k in range(WORKERS) if self.choices.random() < PARTICIPATION]
        pairs = zip(self.parameters, self.base, strict=True)
        residuals = [[p - c for p, c in zip(own, base, strict=True)] for own, base in pairs]
        square = 0.0
        for j, model in enumerate(self.parameters[VALIDATOR]):
            rows = []
            for k in present:
                attacked, skipped = self.choices.random() < ATTACKED, self.choices.random() < SKIPPED
                update = residuals[k][j]
                if not skipped:
                    rows.append(-SCALE * update if attacked else update)
                    residuals[k][j] = torch.zeros_like(update)
                elif self.options.skipped == "zero":
                    rows.append(torch.zeros_like(update))
            change = torch.zeros_like(model)
            if rows:
                change = combine(self.options.rule, torch.stack(rows), residuals[VALIDATOR][j])
            model.copy_(self.base[VALIDATOR][j] + change)
            square += float((change**2).sum())
        self.give_model(residuals)
        return len(present), round(square**0.5, 2)

    @torch.no_grad()
    def accuracy(self):
        self.networks[VALIDATOR].eval()
        pairs = zip(self.test_images.split(500), self.test_labels.split(500), strict=True)
        right = sum(int((self.outputs(VALIDATOR, normalised(x)).argmax(1) == y).sum()) for x, y in pairs)
        return round(100 * right / len(self.test_labels), 2)

    @torch.no_grad()
    def accuracy_reestimated(self):
        """Evaluate with the mean statistics of 512 images of the validator's shard."""
        own = [(m.running_mean.clone(), m.running_var.clone()) for m in self.norms]
        for m in self.norms:
            m.reset_running_stats()
            m.momentum = None  # a cumulative average
        self.networks[VALIDATOR].train()
        for _ in range(8):
            chosen = VALIDATOR * self.size + torch.randint(0, self.size, (64,), generator=self.batches)
            self.outputs(VALIDATOR, normalised(self.images[chosen]))
        accuracy = self.accuracy()
        for m, (mean, variance) in zip(self.norms, own, strict=True):
            m.running_mean.copy_(mean)
            m.running_var.copy_(variance)
            m.momentum = 0.1
        return accuracy

    def epoch(self, number):
        rounds = []
        for batch in range(self.size // BATCH):
            for k in range(WORKERS + 1):
                self.step(k, batch)
            if self.steps == 0:
                self.give_model()  # it overwrites the workers' first step
            self.steps += 1
            if self.steps % STEPS == 0:
                rounds.append(self.round())
        weights = sum(float((p.detach() ** 2).sum()) for p in self.parameters[VALIDATOR] if p.ndim > 1) ** 0.5
        accuracies = {"accuracy": self.accuracy(), "reestimated": self.accuracy_reestimated()}
        counts, norms = zip(*rounds, strict=True)
        return {"epoch": number, **accuracies, "updates": counts, "norms": norms, "weights": round(weights, 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--rule", choices=["average", "trimmed_mean", "phocas", "zeno"], default="trimmed_mean")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--skipped", choices=["zero", "left_out"], default="zero")
    parser.add_argument("--bfloat16", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    simulation = Simulation(options)
    for number in range(1, options.epochs + 1):
        print(json.dumps(simulation.epoch(number)), flush=True)


if __name__ == "__main__":
    main()
