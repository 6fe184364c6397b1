"""Trains with ByzFL's classes in its documented loop, in a separate process, because ByzFL needs its own environment.

    python byzfl_training.py

For each line of the input, a JSON object, the program trains once and prints a line. Keys of the request:

- `data`: an npz file: `samples` and `labels`, `test_samples` and `test_labels`, and the indices of the samples of each
  client, `client_0`, `client_1`, …
- `network`: a file with a pickled module of torch with its initial weights
- `model`: the file for the final parameters, `[d]` float32
- `steps`, `batch_size`, `learning_rate`, `momentum`, `weight_decay`, `seed`
- `f`, `attack`, `aggregator`, `pre_aggregators`: as in a configuration of `byzfl.benchmark`

Keys of the answer: `accuracy` on the test samples, `seconds` and `cpu` (seconds) of this request, and `memory` (MiB),
the largest resident set of this process so far. `byzfl.benchmark` itself imports torchvision, which is not used here.
"""

import copy
import json
import resource
import sys
import time

from library import shell

shell("byzfl")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from byzfl.fed_framework import ByzantineClient, Client, DataDistributor, Server, models  # noqa: E402
from byzfl.utils.misc import set_random_seed  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

LOSS = "CrossEntropyLoss"
TEST_BATCH = 250


def train(request):
    """Train as `byzfl.benchmark.train` does for DSGD; return the server, whose model is the result."""
    with np.load(request["data"]) as arrays:
        data = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    network = torch.load(request["network"], weights_only=False)
    models.network = lambda: copy.deepcopy(network)  # ByzFL looks models up by name
    training = TensorDataset(data["samples"], data["labels"])
    test = DataLoader(TensorDataset(data["test_samples"], data["test_labels"]), batch_size=TEST_BATCH)
    indices = [data[f"client_{client}"].tolist() for client in range(sum("client_" in name for name in data))]
    distributor = DataDistributor(
        {
            "data_distribution_name": "gamma_similarity_niid",
            "nb_honest": len(indices),
            "data_loader": DataLoader(training),
            "batch_size": request["batch_size"],
        }
    )
    both = {"model_name": "network", "device": "cpu", "learning_rate": request["learning_rate"]}
    both |= {"weight_decay": request["weight_decay"], "milestones": [], "learning_rate_decay": 1.0}
    client = both | {"loss_name": LOSS, "LabelFlipping": False, "nb_labels": int(data["labels"].max()) + 1}
    client |= {"momentum": request["momentum"], "store_per_client_metrics": False, "optimizer_name": "SGD"}
    clients = [Client(client | {"training_dataloader": each}) for each in distributor.idx_to_dataloaders(indices)]
    aggregation = {"aggregator_info": request["aggregator"], "pre_agg_list": request["pre_aggregators"]}
    server = Server(both | aggregation | {"optimizer_name": "SGD", "test_loader": test})
    known = request["attack"]["parameters"] | copy.deepcopy(aggregation) | {"f": request["f"]}
    byzantine = ByzantineClient({"name": request["attack"]["name"], "f": request["f"], "parameters": known})
    set_random_seed(request["seed"])
    send(server, clients)
    for _ in range(request["steps"]):
        for each in clients:
            each.compute_gradients()
        honest = [each.get_flat_gradients_with_momentum() for each in clients]
        server.update_model_with_gradients(honest + byzantine.apply_attack(honest))
        send(server, clients)
    return server


def send(server, clients):
    """Send the model to all clients."""
    model = server.get_dict_parameters()
    for client in clients:
        client.set_model_state(model)


def cpu_seconds():
    """Return the CPU seconds of this process and of the processes that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main():
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        began, used = time.perf_counter(), cpu_seconds()
        server = train(request)
        accuracy = server.compute_test_accuracy()
        np.save(request["model"], server.get_flat_parameters().numpy())
        answer = {"accuracy": accuracy, "seconds": time.perf_counter() - began, "cpu": cpu_seconds() - used}
        answer["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer), flush=True)


main()
