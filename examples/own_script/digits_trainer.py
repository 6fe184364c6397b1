"""The digits with the Trainer of Transformers and the hook of hpcps; its lines are marked.

`torchrun --nproc-per-node 4 digits_trainer.py`, or `hpcps launch -n 4 python digits_trainer.py`; `--rule` as in
digits.py.
"""

import argparse
import tempfile

import torch
from data import digits
from transformers import Trainer, TrainerCallback, TrainingArguments

import hpcps.torch


class Network(torch.nn.Module):
    """A small network that returns its loss, as the Trainer expects."""

    def __init__(self):
        """Create the layers."""
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def forward(self, x, labels):
        """Return the loss and the outputs of a batch."""
        outputs = self.layers(x)
        return {"loss": torch.nn.functional.cross_entropy(outputs, labels), "logits": outputs}


class Exchange(TrainerCallback):
    """Has hpcps combine the gradients."""

    def on_train_begin(self, *_, **__):
        """Register the hook, when the Trainer has made its DistributedDataParallel."""
        ddp = trainer.model_wrapped
        ddp.register_comm_hook(hpcps.torch.exchange(rule=args.rule), hpcps.torch.hook)  # the one line more


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--rule", help="a rule of hpcps, such as median; default: the mean")
args = parser.parse_args()

x, y, test_x, test_y = digits(0, 1)  # the Trainer gives each process its part
with tempfile.TemporaryDirectory() as folder:
    settings = TrainingArguments(
        folder,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=32,
        learning_rate=0.01,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    samples = [{"x": each, "labels": label} for each, label in zip(x, y, strict=True)]
    network = Network()
    trainer = Trainer(network, settings, train_dataset=samples, callbacks=[Exchange()])
    trainer.train()
accuracy = (network.layers(test_x).argmax(1) == test_y).float().mean()
hpcps.torch.log(accuracy=accuracy)  # for `hpcps status`
if trainer.is_world_process_zero():
    print(f"{settings.world_size} processes: accuracy {accuracy:.3f}", flush=True)
