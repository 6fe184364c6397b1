"""Logs with the lines of ps_pytorch and PyTorch-parameter-server, of invented runs."""

from pathlib import Path

SAMPLES = 1000
"""Of a pass over the data."""
COMPUTE, FETCH, SEND = 0.4, 0.1, 0.2
"""Seconds of a step of a worker alone, by part; `cost` adds to them."""


def cost(rank: int, step: int, workers: int) -> float:
    """Return the seconds of a step: in each step another worker is the slowest, with 0.5 s more."""
    return 1.0 + 0.5 * (step % workers == rank - 1)


def progress(step: int, batch: int) -> tuple[int, int]:
    """Return epoch and samples before a step; the last batch of a pass may be smaller."""
    epoch, place = divmod(step - 1, -(-SAMPLES // batch))
    return epoch, place * batch


def line(rank: int, step: int, workers: int, *, batch: int = 100, rate: float = 0.1, version: str = "new") -> str:
    """Return the line of a step, in the form of one version."""
    epoch, done = progress(step, batch)
    share, loss, took = 100 * done / SAMPLES, 2.3 / (1 + rate * step) + 0.01 * rank, cost(rank, step, workers)
    times = {
        "old": f"FetchWeight: {FETCH:.4f}, Forward: {COMPUTE / 2:.4f}, Backward: {COMPUTE / 2:.4f}",
        "new": f"FetchWeight: {FETCH:.4f}, Forward: {COMPUTE / 2:.4f}, Backward: {COMPUTE / 2:.4f}, "
        f"Comm Cost: {SEND:.4f}",
        "other": f"FetchWeight: {FETCH:.4f}, Computation: {COMPUTE:.4f}, GatherTime: {SEND:.4f}, Acc: {50.0:.4f}",
        "encoded": f"Comp: {COMPUTE:.4f}, Encode: {0.0: .4f}, Comm: {SEND: .4f}, Msg(MB): {1.5: .4f}, "
        f"Prec@1: {50.0: .4f}, Prec@5: {90.0: .4f}",
    }[version]
    head = "Cur Step: {}, Train Epoch: {}" if version == "old" else "Step: {}, Epoch: {}"
    begin = "INFO:root:" if version == "other" else ""
    what = "Train Loss" if version == "old" else "Loss"
    return (
        f"{begin}Worker: {rank}, {head.format(step, epoch)} [{done}/{SAMPLES} ({share:.0f}%)], {what}: {loss:.4f}, "
        f"Time Cost: {took:.4f}, {times}"
    )


def output(workers: int, steps: int = 12, **options) -> list[str]:
    """Return the lines that mpirun prints of all processes."""
    lines = [f"I am the master: the world size is {workers + 1}, cur step: 1"]
    lines += [f"Worker {rank}: starting training" for rank in range(1, workers + 1)]
    for step in range(1, steps + 1):
        lines.append(f"INFO:root:Master node is entering step: {step}")
        lines += [f"Rank of this node: {rank}, Current step: {step}" for rank in range(1, workers + 1)]
        lines += [line(rank, step, workers, **options) for rank in range(1, workers + 1)]
    return lines


def evaluator(steps: range) -> list[str]:
    """Return the lines of the evaluator."""
    lines = []
    for step in steps:
        lines.append(f"Evaluator evaluating results on step {step}")
        lines.append(f"Test set: Average loss: {1 / step:.4f}, Prec@1: {50 + step} Prec@5: {90.25}")
    return lines


def write(path: Path, lines: list[str]) -> Path:
    """Write a log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{each}\n" for each in lines))
    return path
