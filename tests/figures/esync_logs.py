"""Logs in the format of the published ESync code, of invented runs on CPUs and GPUs."""

import json
from pathlib import Path

DEVICES = ("cloud1/cpu", "cloud1/gpu0", "cloud3/gpu1")
STEP = {"cpu": 3.5, "gpu0": 0.03, "gpu1": 0.03}
QUERY, BATCH, AGGREGATION, EVALUATION = 0.02, 0.01, 4.0, 1.5
SAMPLES = 64


def steps_of(mode: str, device: str) -> int:
    """Return the local steps of a round: only in the mode esync a GPU takes more than one."""
    return 40 if mode.startswith("esync") and "gpu" in device else 1


def write_logs(folder: Path, modes=("esync", "sync"), rounds: int = 4, devices=DEVICES) -> None:
    """Write `<mode>/<device>/iter-N.txt`; the first GPU evaluates in every round."""
    for mode in modes:
        for device in devices:
            path = folder / mode / device
            path.mkdir(parents=True)
            for number, report in enumerate(reports(mode, device, rounds), 1):
                (path / f"iter-{number}.txt").write_text(json.dumps(report))


def reports(mode: str, device: str, rounds: int):
    """Yield the report of each round of a device.

    As in the original, the turn in which a device aggregates is a step too, and an accuracy of zero is left out.
    """
    elapsed = 0.0
    for number in range(1, rounds + 1):
        steps = steps_of(mode, device)
        local = {"check ready": QUERY, "get_batch": BATCH, "forward and backward": STEP[device.rpartition("/")[2]]}
        time = {str(step): {**local, "local update": 0.0} for step in range(steps)}
        last = {"check ready": QUERY, "global aggregate": AGGREGATION}
        report = {"num_iters": number, "num_samples": SAMPLES * steps}
        if device == "cloud1/gpu0":
            last["evaluation"] = EVALUATION
            accuracy = 0.2 * (number - 1)
            report |= {"accuracy": accuracy} if accuracy else {}
        time[str(steps)] = last
        # All devices end a round together.
        elapsed += 10.0
        yield report | {"time": time, "total_time": elapsed}


def summary(mode: str, rounds: int = 4, devices=DEVICES):
    """Return the summary of a mode: lists of each device, with times rounded to seconds."""
    made: dict[str, dict[str, dict[str, list[float]]]] = {}
    for device in devices:
        node, _, worker = device.partition("/")
        own = list(reports(mode, device, rounds))
        made.setdefault(node, {})[worker] = {
            "accuracy_list": [report["accuracy"] for report in own if "accuracy" in report],
            "num_samples_list": [report["num_samples"] for report in own],
            "self_iters_list": [len(report["time"]) for report in own],
            "elapsed_time_list": [round(report["total_time"]) for report in own],
            "aggregate_time_list": [AGGREGATION for _ in own],
        }
    return made
