"""The digits with PyTorch Lightning and the hook of hpcps; its lines are marked.

`torchrun --nproc-per-node 4 digits_lightning.py`, or `hpcps launch -n 4 python digits_lightning.py`; `--rule` as in
digits.py.
"""

import argparse
import os

import lightning
import torch
from data import digits
from torch.utils.data import DataLoader, TensorDataset

import hpcps.torch


class Digits(lightning.LightningModule):
    """A small network, with its loss and its optimizer."""

    def __init__(self, rule):
        """Create the network; see `--rule`."""
        super().__init__()
        self.rule = rule
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def on_train_start(self):
        """Have hpcps combine the gradients: Lightning registers the hook of its strategy only on GPUs."""
        ddp = self.trainer.strategy.model
        ddp.register_comm_hook(hpcps.torch.exchange(rule=self.rule), hpcps.torch.hook)  # the one line more

    def training_step(self, batch, _):
        """Return the loss of a batch."""
        x, y = batch
        return torch.nn.functional.cross_entropy(self.network(x), y)

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--rule", help="a rule of hpcps, such as median; default: the mean")
args = parser.parse_args()

x, y, test_x, test_y = digits(0, 1)  # Lightning gives each process its part
lightning.seed_everything(0, verbose=False)
model = Digits(args.rule)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=args.epochs,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))
accuracy = (model.network(test_x).argmax(1) == test_y).float().mean()
hpcps.torch.log(accuracy=accuracy)  # for `hpcps status`
if trainer.is_global_zero:
    print(f"{trainer.world_size} processes: accuracy {accuracy:.3f}", flush=True)
