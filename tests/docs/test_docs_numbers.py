"""Every measured number of the pages below is computed again from the published tables, and must be in the page.

A table of a page follows a comment `<!-- numbers: NAME -->`; TABLES computes its rows, and SENTENCES sentences.
To change a page after new results, run this file: it prints all tables and sentences.
"""

import functools
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
README, EXPLANATION, HOW_TO = ROOT / "README.md", ROOT / "docs/explanation", ROOT / "docs/how-to"
COMMUNICATION, ESYNC, ROBUSTNESS = EXPLANATION / "communication.md", EXPLANATION / "esync.md", HOW_TO / "robustness.md"
REPRODUCE = HOW_TO / "reproduce.md"
AUDITS, ASSUMED = HOW_TO / "audits.md", HOW_TO / "assumed-f.md"
TUTORIAL = ROOT / "docs/tutorial/first-experiment.md"
MEGABYTE = 1e6


@functools.cache
def published(experiment, *columns, event="evaluation"):
    """Return the rows of one kind of a published table, by run and epoch, without categories."""
    # The file has as many columns as all kinds of rows together.
    file = ROOT / "results/published" / experiment / "table.parquet"
    table = pd.read_parquet(
        file,
        columns=[*{"run_id", "seed", *columns}, *(["epoch"] if event == "evaluation" else [])],
        filters=[("event", "==", event)],
    )
    texts = {name: str for name in table.columns if isinstance(table[name].dtype, pd.CategoricalDtype)}
    return table.astype(texts).sort_values(["run_id", *(["epoch"] if event == "evaluation" else [])])


def cell(values, digits=1):
    """Return the mean and the range of the seeds, such as `57.3 [26.4–88.1]`."""
    values = np.asarray(values, float)
    return f"{values.mean():.{digits}f} [{values.min():.{digits}f}–{values.max():.{digits}f}]"


def short(values):
    """Return the mean and the range of the seeds, with three significant digits."""
    mean, low, high = (f"{value:#.3g}".rstrip(".") for value in (np.mean(values), np.min(values), np.max(values)))
    return f"{mean} [{low}–{high}]"


def benchmark(report, *columns):
    """Return the rows of a table of a report in benchmarks/results, which has these columns."""
    lines = (ROOT / "benchmarks/results" / report).read_text(encoding="utf-8").splitlines()
    cells = [[each.strip(" `*") for each in line.split("|")[1:-1]] for line in lines]
    start = next(at for at, row in enumerate(cells) if [each for each in row if each in columns] == [*columns])
    head = cells[start]
    found = []
    for row in cells[start + 2 :]:
        if not row:
            break
        found.append([row[head.index(name)] for name in columns])
    return found


# Final accuracies.


def final_accuracies(experiment):
    """Return the final accuracies by rule and attack, a value for each seed."""
    rows = published(experiment, "rule", "attack", "accuracy")
    last = rows.groupby("run_id").tail(1)
    return {
        key: 100 * group.sort_values("seed")["accuracy"].to_numpy() for key, group in last.groupby(["rule", "attack"])
    }


def accuracy_table(experiment, rules, attacks):
    """Return the final accuracies, a row for each rule and a column for each attack."""
    found = final_accuracies(experiment)
    return [[f"`{rule}`", *(cell(found[rule, attack]) for attack in attacks)] for rule in rules]


def quickstart_table():
    """Return those of the quickstart."""
    rules, attacks = ("average", "trimmed_mean", "phocas", "zeno"), ("none", "negative 6", "random 1")
    return accuracy_table("quickstart", rules, attacks)


# The paper's figures.

FIGURE_3, FIGURE_4 = "fig3_sync_single_validator", "fig4_sync_two_validators"
FIGURE_5, FIGURE_6 = "fig5_async_single_validator", "fig6_async_two_validators"
FIGURE_7 = "fig7_sync_tune_rho"
RULES, ATTACKS = ("average", "trimmed_mean", "phocas", "zeno"), ("none", "negative 6", "random 1", "randomscale 8")
ASYNC_RULES, ASYNC_ATTACKS = ("naive_async", "zeno++"), ("none", "negative 2", "random 1", "randomscale 8")
RHOS = ("-0.1", "-0.01", "-0.001", "0", "0.001", "0.01", "0.1")


def only_seed(experiment):
    """Return the final accuracies of a figure of one seed."""
    return {key: float(value) for key, (value,) in final_accuracies(experiment).items()}


def figure_table(experiment, rules, attacks):
    """Return them, a row for each rule and a column for each attack."""
    found = only_seed(experiment)
    return [[f"`{rule}`", *(f"{found[rule, attack]:.1f}" for attack in attacks)] for rule in rules]


def async_sentences(experiment):
    """Return what the page says of an asynchronous figure."""
    found = {key: round(value, 2) for key, value in only_seed(experiment).items()}
    zeno = [found["zeno++", attack] for attack in ASYNC_ATTACKS[1:]]
    without = found["zeno++", "none"]
    yield f"It ends between {min(zeno):.1f} and {max(zeno):.1f} %, and without an attack at {without:.1f} %"
    first, second = (found["naive_async", "none"] - found["naive_async", a] for a in ("negative 2", "randomscale 8"))
    rows = published(experiment, "rule", "attack", "accuracy").set_index(["rule", "attack"])
    curves = {key: 100 * rows.loc[key, "accuracy"].to_numpy() for key in found}
    best = np.ceil(round(curves["naive_async", "random 1"].max(), 2))
    yield (
        f"Under `random` it never gets above {best:.0f} %; `negative` costs it {first:.1f} points, and `randomscale` "
        f"{second:.1f}"
    )
    negative, random, scaled = (found["zeno++", a] - found["naive_async", a] for a in ASYNC_ATTACKS[1:])
    above = curves["zeno++", "randomscale 8"] > curves["naive_async", "randomscale 8"]
    yield (
        f"It ends {negative:.1f} points above `naive_async` under `negative`, and {random:.1f} under `random`. Under "
        f"`randomscale` it ends {scaled:.1f} above, and is ahead after {above.sum()} of the {len(above)} epochs"
    )
    yield f"`naive_async` ends at {found['naive_async', 'none']:.1f} %, and `zeno++` at {without:.1f} %"


def figure_7():
    """Return the evaluations of each line, its only seed, by epoch."""
    pairs = ("accepted_pairs_total", "received_pairs_total", "accepted_sent_pairs_total", "sent_pairs_total")
    rows = published(FIGURE_7, "label", "accuracy", "loss", "step", "rounds_total", *pairs)
    assert set(rows["seed"]) == {1}
    found = {label: run.set_index("epoch") for label, run in rows.groupby("label")}
    return {label.replace("zeno rho ", ""): run for label, run in found.items()}


def accepted(run):
    """Return the accepted pairs since the start in percent of those received and of those sent."""
    last = run.iloc[-1]
    return (
        100 * last["accepted_pairs_total"] / last["received_pairs_total"],
        100 * last["accepted_sent_pairs_total"] / last["sent_pairs_total"],
    )


def figure_7_table():
    """Return the final accuracies and what was accepted, a row for each line."""
    found = figure_7()
    final = {line: f"{100 * run['accuracy'].iloc[-1]:.1f}" for line, run in found.items()}
    rows = [
        [f"`zeno`, ρ = {rho.replace('-', '−')}", final[rho], *(f"{rate:.1f}" for rate in accepted(found[rho]))]
        for rho in RHOS
    ]
    return [*rows, ["validation only", final["validation only"], "–", "–"]]


def figure_7_sentences():
    """Return what the page says of Figure 7."""
    found = figure_7()
    alone = found.pop("validation only")
    final = {rho: 100 * run["accuracy"].iloc[-1] for rho, run in found.items()}
    yield f"All end between {min(final.values()):.1f} and {max(final.values()):.1f} %"
    received, sent = zip(*(accepted(found[rho]) for rho in RHOS), strict=True)
    assert list(sent) == sorted(sent, reverse=True)
    yield f"accepts less: {sent[0]:.1f} % of the pairs sent with ρ = −0.1, and {sent[-1]:.1f} % with ρ = 0.1"
    below, zero = RHOS.index("-0.001"), RHOS.index("0")
    yield (
        f"between ρ = −0.001 and 0, the accepted pairs fall from {received[below]:.1f} to {received[zero]:.1f} % "
        f"of those received, but only from {sent[below]:.1f} to {sent[zero]:.1f} % of those sent"
    )
    yield f"The accuracy does not fall: it is {final['0']:.1f} % instead of {final['-0.001']:.1f} %"
    curves = 100 * np.array([found[rho]["accuracy"] for rho in RHOS])
    above = curves[zero : zero + 3, 10:].min(axis=0) - curves[:zero, 10:].max(axis=0)
    yield (
        f"In each epoch from 11 on, ρ = 0, 0.001 and 0.01 are {above.min():.1f} points or more above all negative "
        f"values; ρ = 0.1 ends at {final['0.1']:.1f} %"
    )
    own = 100 * alone["accuracy"].to_numpy()
    ahead = np.flatnonzero(own <= curves.max(axis=0))[0]
    yield (
        f"*Validation only* ends at {own[-1]:.1f} %, and the best `zeno` at {max(final.values()):.1f} %; until epoch "
        f"{ahead} it is above all of them"
    )
    assert own[11:].max() - own[10] < 1
    yield f"It gains less than a point after epoch 11 ({own[10]:.1f} %)"
    ends = [run["loss"].iloc[-1] for run in found.values()]
    yield (
        f"its test loss rises from {alone['loss'].iloc[0]:.2f} in the first epoch to {alone['loss'].iloc[-1]:.2f}; "
        f"those of `zeno` end between {min(ends):.2f} and {max(ends):.2f}"
    )
    (rounds,) = {int(run["rounds_total"].iloc[-1]) for run in found.values()}
    shards, batch, steps = 17, 32, 8
    in_paper = 200 * (50_000 // shards // batch) // steps
    yield f"The reduction has {rounds} of the paper's {in_paper:,} rounds"
    yield f"which may help in {rounds} rounds"
    yield f"the validators' shard of {23_040 // shards:,} images, 16 times per epoch"
    yield f"in {int(alone['step'].iloc[-1]):,} steps one after another, where a worker takes {rounds * steps}"


def figure_4_sentences():
    """Return what the page says of Figure 4."""
    found = {key: round(value, 2) for key, value in only_seed(FIGURE_4).items()}

    def below(rule, attack):
        return found["zeno", attack] - found[rule, attack]

    rows = published(FIGURE_4, "rule", "attack", "accuracy").set_index(["rule", "attack"])
    attacked = [tuple(rows.loc[("zeno", attack), "accuracy"]) for attack in ATTACKS[1:]]
    assert len(set(attacked)) == 1, "its three curves are one"
    before, after = (100 * attacked[0][epoch - 1] for epoch in (9, 10))
    attacked_end, without = found["zeno", "random 1"], found["zeno", "none"]
    yield f"It ends at {attacked_end:.1f} % under each, and at {without:.1f} % without an attack"
    yield f"it falls from {before:.1f} % to {after:.1f} % in epoch 10"
    negative, random = (found["average", attack] for attack in ("negative 6", "random 1"))
    cost = found["average", "none"] - found["average", "randomscale 8"]
    yield f"It ends at {negative:.1f} % under `negative`, and at {random:.1f} % under `random`"
    yield f"`randomscale` costs it {cost:.1f} points"
    first, second, third, fourth = (
        f"{below(rule, attack):.1f}" for attack in ("negative 6", "random 1") for rule in ("trimmed_mean", "phocas")
    )
    yield (
        f"They end {first} and {second} points below `zeno` under `negative`, and {third} and {fourth} under `random`"
    )
    fifth, sixth = (f"{-below(rule, 'randomscale 8'):.1f}" for rule in ("trimmed_mean", "phocas"))
    yield f"they are as good as `zeno`: {fifth} and {sixth} points above"
    yield f"`average` reaches {found['average', 'none']:.1f} %, and `zeno` {without:.1f} %"


def reproduce_sentences():
    """Return what the page says of the claims of the paper."""
    yield from figure_4_sentences()
    yield from async_sentences(FIGURE_5)
    yield from async_sentences(FIGURE_6)
    yield from figure_7_sentences()
    found = {key: round(value, 2) for key, value in only_seed(FIGURE_3).items()}

    def below(rule, attack, other="zeno"):
        return found[other, attack] - found[rule, attack]

    rows = published(FIGURE_3, "rule", "attack", "accuracy").set_index(["rule", "attack"])
    attacked = [tuple(rows.loc[("zeno", attack), "accuracy"]) for attack in ATTACKS[1:]]
    assert len(set(attacked)) == 1, "its three curves are one"
    lost = found["zeno", "none"] - found["zeno", "negative 6"]
    yield f"It loses {lost:.1f} points beside no attack, and its three curves are one"
    best = 100 * rows.loc[("average", "random 1"), "accuracy"].max()
    cost = found["average", "none"] - found["average", "randomscale 8"]
    yield f"under `random` it gets to {best:.0f} % and ends at chance; `randomscale` costs it {cost:.1f} points"
    first, second = (f"{below(rule, 'negative 6'):.1f}" for rule in ("trimmed_mean", "phocas"))
    third, fourth = (f"{below(rule, 'random 1'):.1f}" for rule in ("trimmed_mean", "phocas"))
    yield (
        f"They end {first} and {second} points below `zeno` under `negative`, and {third} and {fourth} under `random`"
    )
    fifth, sixth = (f"{-below(rule, 'randomscale 8'):.1f}" for rule in ("trimmed_mean", "phocas"))
    yield f"they are as good as `zeno`: {fifth} points above, and {sixth}"
    yield f"`average` reaches {found['average', 'none']:.1f} %"
    (baseline,) = final_accuracies("sgd_baseline").values()
    yield f"It ends at {float(baseline[0]):.1f} %"


def simulation_table():
    """Return ours beside the independent simulation, over five epochs at a time; a dash if a seed has not got there."""
    lines = (ROOT / "results/published/resnet20_fig3/oracle_fig3.jsonl").read_text().splitlines()
    theirs = {}
    for line in map(json.loads, lines):
        if line["source"] == "independent simulation":
            theirs[line["rule"], int(line["epoch"])] = 100 * line["accuracy"]
    rows = published("resnet20_fig3", "rule", "accuracy")
    found = []
    for rule in ("average", "zeno", "phocas", "trimmed_mean"):
        seeds = [group.set_index("epoch")["accuracy"] for _, group in rows[rows["rule"] == rule].groupby("run_id")]
        cells = []
        for epochs in (range(5, 10), range(10, 15), range(15, 20)):
            if any(epochs[-1] not in seed.index for seed in seeds):
                cells.append("–")
                continue
            ours = np.mean([100 * seed.loc[[*epochs]].mean() for seed in seeds])
            other = np.mean([theirs[rule, epoch] for epoch in epochs])
            cells.append(f"{ours:.1f} − {other:.1f} = {ours - other:+.1f}".replace("= -", "= −"))
        found.append([rule, *cells])
    return found


# Few bytes over slow links.

COMPRESSORS = ("fp16", "bf16", "int8", "sign", "onebit", "topk", "dithering", "qsgd", "sparse_loco", "powersgd")


def rates_table():
    """Return the rates of the compressors; the first columns are no numbers."""
    found = {
        name: (encode, decode)
        for name, encode, decode in benchmark("compressors.md", "Compressor", "Encode, GB/s", "Decode, GB/s")
    }
    return [
        [f"`{name}`", None, None, *(f"{float(rate):.1f}" for rate in found[name])]
        for name in (*COMPRESSORS, "lossless", "randomk")
    ]


def between_hosts():
    """Return the milliseconds of a round: compressor, what is encoded, partitions, and the median."""
    rows = benchmark("compressors.md", "Compressor", "Encoded", "Partitions", "Round, ms")
    return [(*names, np.median([float(each) for each in times.split(",")])) for *names, times in rows]


def between_hosts_table():
    """Return the medians in seconds, and how many times shorter than without a compressor."""
    rows = between_hosts()
    return [
        [f"`{name}`", encoded, partitions, f"{time / 1e3:.2f}", f"{rows[0][-1] / time:.2f}"]
        for name, encoded, partitions, time in rows
    ]


TARGET = 90.0
RATES = (0.1, 1.0, 10.0)
KINDS = {
    "none": ("`none`", ""),
    "fp16 direction update": ("`fp16`", "update"),
    "int8 direction update": ("`int8`", "update"),
    "onebit direction update": ("`onebit`", "update"),
    "topk direction update k 0.01": ("`topk`, 1 %", "update"),
    "topk direction update k 0.1": ("`topk`, 10 %", "update"),
    "randomk": ("`randomk`, 10 %", "update"),
    "dithering memory residual direction update": ("`dithering`, 4 levels", "update"),
    "qsgd direction update": ("`qsgd`, no memory", "update"),
    "powersgd direction update": ("`powersgd`", "update"),
    "sparse_loco direction update": ("`sparse_loco`", "update"),
    "fp16 direction both": ("`fp16`", "both"),
    "int8 direction both": ("`int8`", "both"),
    "onebit direction both": ("`onebit`", "both"),
    "topk direction both k 0.1": ("`topk`, 10 %", "both"),
    "dithering memory none direction both": ("`dithering`, 4 levels, no memory", "both"),
    "qsgd direction both": ("`qsgd`, no memory", "both"),
    "powersgd direction both": ("`powersgd`", "both"),
    "sparse_loco direction both": ("`sparse_loco`", "both"),
    "lossless": ("`lossless`", "both"),
}
"""The lines of the study, and their names in the page."""


@functools.cache
def costs(shift=0.0):
    """Return what each run sends and computes until the target, with `shift` test images more: by line and local steps.

    The rows are the seeds; the columns are the final accuracy, the megabytes of all and of the busiest process, and
    CPU seconds.
    """
    line, steps = "communication.compression", "train.local_steps"
    rows = published("bytes_to_target", line, steps, "accuracy", "bytes_sent_total")
    totals = published("bytes_to_target", "role", "cpu", "cpu_evaluate", "bytes_sent", "bytes_received", event="totals")
    sent_by_epoch = rows.groupby([line, steps, "epoch"])["bytes_sent_total"].mean()
    totals = totals.assign(
        busiest=totals[["bytes_sent", "bytes_received"]].max(axis=1),
        work=totals["cpu"] - totals["cpu_evaluate"].fillna(0),
    )
    busiest = totals.groupby("run_id")["busiest"].max()
    work = totals.groupby(["run_id", "role"])["work"].max().groupby("run_id").sum()
    found = {}
    for (kind, local, _, run), each in rows.groupby([line, steps, "seed", "run_id"]):
        accuracy, sent = 100 * (each["accuracy"].to_numpy() + shift / 360), each["bytes_sent_total"].to_numpy()
        epochs = each["epoch"].to_numpy(float)
        first = int(np.argmax(accuracy >= TARGET))
        reached = 3 * [np.nan]
        if accuracy[first] >= TARGET:
            around = slice(max(first - 1, 0), first + 1)
            means = sent_by_epoch[kind, local].to_numpy()
            reached = [np.interp(TARGET, accuracy[around], those[around]) for those in (means, epochs, sent)]
        link, seconds = busiest[run] * reached[2] / sent[-1], work[run] * reached[1] / epochs[-1]
        found.setdefault((kind, str(local)), []).append((accuracy[-1], reached[0] / MEGABYTE, link / MEGABYTE, seconds))
    return {key: np.array(values) for key, values in found.items()}


def times_fewer(kind, steps):
    """Return how many times fewer bytes a line needs than `none` with the same seed."""
    return costs()["none", steps][:, 1] / costs()[kind, steps][:, 1]


def seconds(kind, steps, rate):
    """Return the mean modelled time on links of a rate in Gbit/s."""
    _, _, link, work = costs()[kind, steps].T
    return (work + 8e-3 * link / rate).mean()


def bytes_table(steps):
    """Return the costs of each line until the target."""
    rows = []
    for kind, names in KINDS.items():
        found = costs()[kind, steps]
        known = np.isfinite(found[:, 1]).all()
        times = [f"{seconds(kind, steps, rate):#.2g}" for rate in RATES]
        reached = [short(found[:, 1]), short(times_fewer(kind, steps)), short(found[:, 2]), *times]
        rows.append([*names, f"{found[:, 0].mean():.1f}", *(reached if known else ["–"] * 6)])
    return rows


# ESync.

METHODS = {
    ("average", "esync"): "ESync",
    ("average", "1"): "SSGD",
    ("naive_async", "1"): "ASGD",
    ("dc_asgd", "1"): "DC-ASGD",
}
"""The methods by their rule and local steps."""


@functools.cache
def methods(experiment, split=""):
    """Return, for each method, the runs of its seeds: the accuracies by evaluation, and the sums of each worker."""
    keys = ["rule", "train.local_steps", "workers", *(["data.split"] if split else [])]
    rows = published(experiment, *keys, "accuracy")
    totals = published(
        experiment, "role", "index", "samples", "bytes_sent", "time", "compute", "rounds", event="totals"
    )
    workers = {name: run.sort_values("index") for name, run in totals[totals["role"] == "worker"].groupby("run_id")}
    rows = rows[rows["workers"].astype(float) > 0]
    rows = rows[rows["data.split"] == split] if split else rows
    found = {name: [] for name in METHODS.values()}
    for (rule, steps, _, name), run in rows.groupby(["rule", "train.local_steps", "seed", "run_id"]):
        found[METHODS[rule, str(steps)]].append((100 * run["accuracy"].to_numpy(), workers[name]))
    return found


def standalone(experiment):
    """Return the final accuracies of training in one process, by seed, and its samples."""
    rows = published(experiment, "workers", "accuracy")
    rows = rows[rows["workers"].astype(float) == 0]
    last = rows.groupby("run_id")["accuracy"].last().to_numpy()
    return 100 * last


def fewest(experiment, split=""):
    """Return the fewest samples that a method uses."""
    return min(workers["samples"].sum() for runs in methods(experiment, split).values() for _, workers in runs)


def around(runs, samples=None):
    """Return the mean accuracy at the last evaluation within an amount of samples, or at the end.

    The range is over the seeds, over this evaluation and those beside it: it shows how far a curve swings.
    """
    at, near = [], []
    for accuracy, workers in runs:
        each = workers["samples"].sum() * np.arange(1, len(accuracy) + 1) / len(accuracy)
        place = len(accuracy) - 1 if samples is None else int(np.flatnonzero(each <= samples * (1 + 1e-3))[-1])
        at.append(accuracy[place])
        near.extend(accuracy[max(place - 1, 0) : place + 2])
    return f"{np.mean(at):.1f} [{min(near):.1f}–{max(near):.1f}]"


def rate(runs, column):
    """Return the mean of a sum over the workers, per second of the worker that ends last."""
    return np.mean([workers[column].sum() / workers["time"].max() for _, workers in runs])


def step_ratio(runs):
    """Return the mean local step of the slowest worker divided by that of the fastest."""
    steps = [workers["compute"] / workers["samples"] for _, workers in runs]
    return np.mean([each.max() / each.min() for each in steps])


def digits_table():
    """Return the methods with steps of 1:10 on the digits."""
    iid, by_class = methods("esync_iid"), methods("esync_by_class")
    samples, rows = fewest("esync_iid"), []
    for name in METHODS.values():
        runs, others = iid[name], by_class[name]
        speed = rate(runs, "samples")
        rows.append(
            [
                name,
                f"{speed:,.0f}",
                f"{speed / rate(iid['SSGD'], 'samples'):.1f}",
                f"{step_ratio(runs):.0f}",
                around(runs),
                around(runs, samples),
                around(others),
                around(others, samples),
            ]
        )
    alone = [f"{value:.1f}" for name in ("esync_iid", "esync_by_class") for value in standalone(name)]
    return [*rows, [None, "–", "–", "–", alone[0], "–", alone[1], "–"]]


def images_table():
    """Return the methods on images of 28 x 28."""
    found = methods("esync_28x28")
    samples, rows = fewest("esync_28x28"), []
    for name, runs in found.items():
        speed = rate(runs, "samples")
        ends = np.mean([workers["time"].max() for _, workers in runs])
        rows.append(
            [
                name,
                f"{speed:,.0f}",
                f"{speed / rate(found['SSGD'], 'samples'):.1f}",
                f"{rate(runs, 'bytes_sent') / MEGABYTE:.1f}",
                f"{ends:.0f}",
                f"{step_ratio(runs):.0f}",
                around(runs),
                around(runs, samples),
            ]
        )
    (alone,) = standalone("esync_28x28")
    return [*rows, [None, "–", "–", "–", "–", "–", f"{alone:.1f}", "–"]]


def liar_table():
    """Return the samples per second by attack and policy: the mean and the range over the seeds."""
    keys = ("attack", "train.local_steps", "role", "samples", "time")
    totals = published("esync_liar", *keys, event="totals")
    runs = totals[totals["role"] == "worker"].groupby(["attack", "train.local_steps", "run_id"])
    speeds = (runs["samples"].sum() / runs["time"].max()).reset_index(name="speed")
    rows = []
    for name, attack in (("what it measures", "none"), ("ten times as much", "slow"), ("a tenth", "fast")):
        each = speeds[speeds["attack"].str.startswith(attack)]
        cells = []
        for policy in ("esync durations reported", "esync durations measured", "esync durations measured clip 4"):
            found = each[each["train.local_steps"] == policy]["speed"]
            low, high = f"{found.min():,.0f}", f"{found.max():,.0f}"
            cells.append(f"{found.mean():,.0f}" + f" [{low}–{high}]" * (low != high))
        rows.append([name, *cells])
    return rows


def share(runs, slow):
    """Return the mean percentage of their time that slow or fast workers compute."""
    return np.mean(
        [(100 * workers["compute"] / workers["time"])[(workers["index"] >= 4) == slow].mean() for _, workers in runs]
    )


def paper_table():
    """Return the methods on the simulated devices of the paper; None stands for a value of the paper."""
    return [
        [
            name,
            _three(rate(runs, "samples")),
            None,
            f"{rate(runs, 'bytes_sent') / MEGABYTE:.1f}",
            None,
            f"{share(runs, slow=False):.1f}",
            None,
            f"{share(runs, slow=True):.1f}",
            None,
        ]
        for name, runs in methods("esync_paper", "iid").items()
    ]


def _three(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def accuracies_table():
    """Return the accuracies on the simulated devices."""
    iid, by_class = methods("esync_paper", "iid"), methods("esync_paper", "by_class")
    samples = fewest("esync_paper", "by_class")
    return [[name, around(iid[name]), around(by_class[name]), around(by_class[name], samples), None] for name in iid]


# Sentences. Each is in its page as it is here, on any number of lines.


def readme_sentences():
    """Return what README says of measured numbers."""
    seeds = {len(values) for values in final_accuracies("quickstart").values()}
    assert seeds == {3}
    rounds = {row[0]: row[1:] for row in benchmark("round.md", "", "1 MB", "64 MB")}
    ours, peers = (min(_first(row[0]) for name, row in rounds.items() if mine(name)) for mine in (_is_ours, _is_peer))
    (medium, large), (packed_medium, packed_large) = (
        [float(ratio(size, what)) for size in ("64 MB", "256 MB")] for what in ("hpcps", "with packing")
    )
    yield f"takes {medium:.2f} to {large:.2f} of the time of the best Allreduce on the same machine"
    assert 3 <= float(ratio("1 MB", "hpcps")) < 4
    yield f"three times as long with 1 MB: {ours:.1f} ms instead of {peers:.1f} ms"
    assert round(float(ratio("1 MB", "with packing"))) == 5
    assert min(float(ratio(f"{size} MB", "with packing")) for size in (1, 4, 16, 64, 256)) > 1
    yield "a round takes longer than the best Allreduce at every size"
    yield f"{packed_medium:.2f} to {packed_large:.2f} times as long with these models, and five times with 1 MB"
    yield "Means of three seeds with their range"


def _first(cell):
    return float(cell.split(" ")[0])


def _is_ours(name):
    return name.startswith("hpcps,")


def _is_peer(name):
    return name.endswith(("Allreduce", "all_reduce")) and not _is_ours(name)


def ratio(size, what):
    """Return a ratio to the best peer, of the first table: 4 ranks."""
    ((cell,),) = [cells for name, *cells in benchmark("round.md", "", size) if name == f"{what} / best peer"]
    return cell


def communication_sentences():
    """Return what the page says of bytes to the target."""
    plain, both = costs()["none", "1"], [kind for kind, (_, direction) in KINDS.items() if direction == "both"]
    updates = [kind for kind, (_, direction) in KINDS.items() if direction == "update" and kind != "randomk"]
    steps = plain[:, 1] / costs()["none", "8"][:, 1]
    onebit, dithering, sparse = (
        "onebit direction both",
        "dithering memory none direction both",
        "sparse_loco direction both",
    )
    fewest = np.array([plain[:, 1] / costs()[kind, "8"][:, 1] for kind in (onebit, dithering, sparse)])
    yield f"Eight local steps need {steps.min():.1f} to {steps.max():.1f} times fewer bytes than one"
    yield f"with eight steps need {fewest.min():.0f} to {fewest.max():.0f} times fewer bytes than neither"
    fewer = [times_fewer(kind, "1").mean() for kind in updates]
    link = min(costs()[kind, "1"][:, 2].mean() for kind in updates)
    yield (
        f"all bytes are {min(fewer):.1f} to {max(fewer):.1f} times fewer, but the server still sends at least "
        f"{link:.1f} MB"
    )

    def share(kind, local, rate):
        return 100 * seconds(kind, local, rate) / seconds("none", local, rate)

    yield (
        f"`dithering` in both directions takes {share(dithering, '1', 0.1):.0f} % of the time with one step, and "
        f"{share(dithering, '8', 0.1):.0f} % with eight; `onebit` takes {share(onebit, '1', 0.1):.0f} and "
        f"{share(onebit, '8', 0.1):.0f} %"
    )
    everything = [*updates, *both]
    for rate in (1.0, 10.0):
        one, eight = (min(share(kind, local, rate) for kind in everything) for local in ("1", "8"))
        where = f"*At {rate:.0f} Gbit/s* no compressor takes less than"
        yield f"{where} {one:.0f} % with one step, and {eight:.0f} % with eight"
    work = costs()[sparse, "1"][:, 3].mean() / plain[:, 3].mean()
    yield f"`sparse_loco` in both directions needs {work:.1f} times the computing of `none`"
    yield f"ends at {costs()['randomk', '1'][:, 0].mean():.1f} % with one step"
    yield apart(everything)
    changed = [
        abs(costs(shift)[key][:, 1].mean() / found[:, 1].mean() - 1)
        for shift in (-1.0, 1.0)
        for key, found in costs().items()
        if np.isfinite(found[:, 1]).all()
    ]
    yield (
        f"One test image more or less in every evaluation changes a mean by {100 * np.mean(changed):.0f} %, and by "
        f"{100 * max(changed):.0f} % at most"
    )
    spread = max(found[:, 1].max() / found[:, 1].min() for found in costs().values())
    yield f"Between seeds the bytes of one line differ by a factor of up to {spread:.1f}"
    yield from perplexity_sentences()


def apart(kinds):
    """Return how far final accuracies are from those without a compressor."""
    far = {
        (kind, local): costs()[kind, local][:, 0].mean() - costs()["none", local][:, 0].mean()
        for kind in kinds
        for local in ("1", "8")
    }
    topk, power = (-far.pop((kind, "8")) for kind in ("topk direction update k 0.01", "powersgd direction update"))
    return (
        f"by at most {max(map(abs, far.values())):.1f} points, except those of `randomk` and, with eight steps, of "
        f"updates with `topk`, 1 % ({topk:.1f} points), and `powersgd` ({power:.1f} points)"
    )


def perplexities():
    """Return the final perplexities of robust DiLoCo, by attack, server optimizer and rule."""
    rows = published("diloco_robust", "rule", "attack_kind", "server.optimizer", "perplexity")
    last = rows.groupby("run_id").last()
    return {
        (str(row["attack_kind"]), str(row["server.optimizer"]).split(" ")[0], str(row["rule"]).split(" ")[0]): row[
            "perplexity"
        ]
        for _, row in last.iterrows()
    }


def perplexity_table():
    """Return the final perplexities."""
    found = perplexities()
    rules = {
        "average": "`average`",
        "median": "`median`",
        "trimmed_mean": "`trimmed_mean`, f = 1",
        "geometric_median": "`geometric_median`",
    }
    return [
        [
            name,
            *(
                f"{found[attack, optimizer, rule]:.2f}"
                for attack in ("none", "sign_flip", "alie")
                for optimizer in ("none", "nesterov")
            ),
        ]
        for rule, name in rules.items()
    ]


def perplexity_sentences():
    """Return what the page says of robust DiLoCo."""
    found = perplexities()
    rules, outer = ("average", "median", "trimmed_mean", "geometric_median"), ("none", "nesterov")

    def spread(attack):
        of_all = [[found[attack, optimizer, rule] for rule in rules] for optimizer in outer]
        return 100 * max(max(each) / min(each) - 1 for each in of_all)

    def gains(*attacks):
        ratios = [
            1 - found[attack, "nesterov", rule] / found[attack, "none", rule] for attack in attacks for rule in rules
        ]
        return f"by {100 * min(ratios):.0f} to {100 * max(ratios):.0f} %"

    totals = published("diloco_robust", "cpu", event="totals")
    yield f"the {totals['run_id'].nunique()} runs used {totals['cpu'].sum() / 3600:.1f} hours of CPU time"
    costly = [
        100 * (found["alie", optimizer, rule] / found["none", optimizer, rule] - 1)
        for optimizer in outer
        for rule in rules
    ]
    yield f"the four perplexities differ by at most {spread('none'):.1f} %"
    yield f"`alie` costs little: {min(costly):.1f} to {max(costly):.1f} % of perplexity"
    yield f"the four rules differ by at most {spread('alie'):.1f} %"
    yield f"{gains('none', 'alie')} without an attack and under `alie`, and {gains('sign_flip')} under `sign_flip`"


def esync_sentences():
    """Return what the page says of methods beside each other."""

    def final(runs):
        return np.mean([accuracy[-1] for accuracy, _ in runs])

    def equal(experiment):
        return {
            name: float(around(runs, fewest(experiment)).split(" ")[0]) for name, runs in methods(experiment).items()
        }

    names = ("esync_iid", "esync_by_class", "esync_28x28")
    ahead = [final(methods(name)["ESync"]) - final(methods(name)["SSGD"]) for name in names]
    yield f"ahead of SSGD by {min(ahead):.0f} to {max(ahead):.0f} points"
    spread = max(max(equal(name).values()) - min(equal(name).values()) for name in ("esync_iid", "esync_28x28"))
    yield f"With uniform shards ESync, SSGD and the asynchronous methods are within {np.ceil(spread):.0f} points"
    by_class = equal("esync_by_class")
    behind, others = by_class["SSGD"] - by_class["ESync"], by_class["SSGD"] - by_class["ASGD"]
    yield (f"ESync is {behind:.0f} points behind SSGD, and the asynchronous methods are {others:.1f} points behind it")
    paper = methods("esync_paper", "iid")
    esync, ssgd, asgd = (rate(paper[name], "samples") for name in ("ESync", "SSGD", "ASGD"))
    yield f"ESync processes {esync / ssgd:.0f} times as many samples per second as SSGD"
    yield f"and {esync / asgd:.0f} times as many as ASGD"
    ends, rounds = (np.mean([part(workers) for _, workers in paper["ESync"]]) for part in (_end, _rounds))
    yield f"against {ends / rounds:.1f} s here"
    slow = fewest("esync_paper", "by_class")
    by_class = methods("esync_paper", "by_class")
    at = {name: float(around(by_class[name], slow).split(" ")[0]) for name in by_class}
    yield f"ESync has {at['ESync']:.1f} % where SSGD has {at['SSGD']:.1f} %"
    more = np.mean([workers["samples"].sum() for _, workers in by_class["ESync"]]) / slow
    yield f"the number of samples, {more:.0f} times as many"
    digits, images = (
        np.mean([_end(workers) for _, workers in methods(name)["ESync"]]) for name in (names[0], names[2])
    )
    yield f"({digits:.0f} s, and {images:.0f} s with images of 28 x 28)"
    swings = [
        np.abs(np.diff(accuracy[len(accuracy) // 2 :])).max()
        for accuracy, _ in methods("esync_paper", "by_class")["ASGD"]
    ]
    yield f"by up to {max(swings):.0f} points from one evaluation to the next in the second half"
    sends = rate(paper["ESync"], "bytes_sent") / rate(paper["ASGD"], "bytes_sent")
    assert 0.45 < sends < 0.55
    yield "sends half as much as ASGD"
    (alone,) = standalone("esync_paper")
    yield f"standalone training (one seed) on as many samples as ESync reaches {alone:.1f}"


def _end(workers):
    return workers["time"].max()


def _rounds(workers):
    return workers["rounds"].max()


def robustness_sentences():
    """Return what the page says of stalled runs: zeno on the Dirichlet split, at the last evaluation of each run."""
    rows = published(
        "robustness_grid", "rule", "attack", "data.split", "rounds_total", "empty_rounds_total", "accuracy"
    )
    rows = rows[(rows["rule"] == "zeno") & rows["data.split"].str.contains("dirichlet")]
    last = rows.groupby("run_id").last()
    first, others = last[last["seed"] == 1], last[last["seed"] != 1]
    (empty,), (rounds,), (accuracy,) = (set(first[name]) for name in ("empty_rounds_total", "rounds_total", "accuracy"))
    yield (
        f"`zeno` on the Dirichlet split with seed 1 accepted no update in {empty:.0f} of {rounds:.0f} rounds, "
        "under every attack"
    )
    yield f"The accuracy of this seed is {100 * accuracy:.1f} %"
    low, high = 100 * others["accuracy"].min(), 100 * others["accuracy"].max()
    yield f"that of the others {low:.1f} to {high:.1f} %"


AUDITED = {
    "sign_flip every 1 ": "`sign_flip`",
    "sign_flip every 10": "`sign_flip`, one round in ten",
    "ipm": "`ipm`",
    "alie": "`alie`",
    "label_flip": "`label_flip`",
    "false_residual": "`false_residual`, one round in twenty",
}
"""The attacks of the study of audits: the beginnings of their labels, and their names in the page."""
SHARES = (0.01, 0.05, 0.1)


def audits_detection_table():
    """Return how many attackers were excluded in time, by attack and share, beside what the formula expects.

    The attackers act in the first of every so many rounds; audits of the last round exclude nobody.
    """
    keys = ("attack", "attack_rate", "validation.audit.share")
    proofs = published("audit", *keys, "of", "worker", event="excluded")
    runs = published("audit", *keys, "rounds_total").groupby("run_id").last().reset_index()
    rows = []
    for label, name in AUDITED.items():
        row, every = [name], {"sign_flip every 10": 10, "false_residual": 20}.get(label, 1)
        for share in SHARES:
            of = runs[runs["attack"].str.startswith(label) & np.isclose(runs["validation.audit.share"], share)]
            attackers = (10 * of["attack_rate"]).round()
            false = -(-(of["rounds_total"] - 1) // every)
            expected = (attackers * (1 - (1 - share) ** false)).sum()
            found = proofs[proofs["run_id"].isin(of["run_id"])]
            assert (found["of"] % every == 0).all(), "honest rounds prove nothing"
            row.append(f"{len(found)} of {attackers.sum():.0f} ({expected:.1f})")
        rows.append(row)
    return rows


def audits_delay_table():
    """Return after how many false rounds attackers were excluded, by attack and share, beside what the formula expects.

    Of an attacker that is found within k false rounds, the number until then has the truncated geometric distribution.
    """
    keys = ("attack", "attack_rate", "validation.audit.share")
    proofs = published("audit", *keys, "of", "worker", event="excluded")
    rounds = int(published("audit", "rounds_total")["rounds_total"].max())
    rows = []
    for label, name in AUDITED.items():
        row, every = [name], {"sign_flip every 10": 10, "false_residual": 20}.get(label, 1)
        k = np.arange(1, -(-(rounds - 1) // every) + 1)
        for share in SHARES:
            chances = share * (1 - share) ** (k - 1)
            found = proofs[proofs["attack"].str.startswith(label) & np.isclose(proofs["validation.audit.share"], share)]
            delay = (found["of"] // every + 1).mean()
            row.append(f"{delay:.1f} ({(k * chances).sum() / chances.sum():.1f})")
        rows.append(row)
    return rows


def audits_accuracy_table():
    """Return the accuracy at the end, by attack and attackers: without defence, with rules, and with audits."""
    keys = ("rule", "attack", "attack_rate", "validation.audit.share", "accuracy")
    last = published("audit", *keys).groupby("run_id").last()
    share, rule = last["validation.audit.share"].fillna(0.0), last["rule"]
    lines = [(share == 0) & (rule == "average")]
    lines += [(share == 0) & rule.str.startswith(name) for name in ("median", "geometric_median", "trimmed_mean")]
    lines += [np.isclose(share, each) for each in SHARES]
    rows = []
    for label, name in AUDITED.items():
        for rate in (0.1, 0.4, 0.6):
            chosen = last["attack"].str.startswith(label) & np.isclose(last["attack_rate"], rate)
            cells = [f"{100 * last[chosen & line]['accuracy'].mean():.1f}" for line in lines]
            assert {len(last[chosen & line]) for line in lines} == {3}
            rows.append([name, f"{10 * rate:.0f}", *cells])
    return rows


def assumed_table():
    """Return the accuracy under the worse attack by rule and by the f that it is told, with no attacker and three."""
    last = published("assumed_f", "rule", "attack", "attack_rate", "accuracy").groupby("run_id").last()
    last["told"] = last["rule"].str.extract(r" f (\d)$", expand=False).astype(int)
    last["name"] = last["rule"].str.replace(r" f \d$", "", regex=True)
    last["actual"] = (15 * last["attack_rate"]).round().astype(int)
    last["kind"] = last["attack"].str.partition(" ")[0]
    means = last.groupby(["name", "actual", "told", "kind"])["accuracy"].mean()
    worst = 100 * means.groupby(["name", "actual", "told"]).min()
    rows = []
    for name in sorted(set(last["name"])):
        shown = "`trimmed_mean` after `nnm`" if "nnm" in name else f"`{name.removesuffix(' 1')}`"
        rows.append([shown, *(f"{worst[name, actual, told]:.1f}" for actual in (0, 3) for told in range(4))])
    return rows


TABLES = {
    (ASSUMED, "wrong f"): assumed_table,
    (AUDITS, "attackers found"): audits_detection_table,
    (AUDITS, "delays"): audits_delay_table,
    (AUDITS, "accuracy"): audits_accuracy_table,
    (COMMUNICATION, "compressors"): rates_table,
    (COMMUNICATION, "between hosts"): between_hosts_table,
    (COMMUNICATION, "bytes, 1 step"): lambda: bytes_table("1"),
    (COMMUNICATION, "bytes, 8 steps"): lambda: bytes_table("8"),
    (COMMUNICATION, "perplexity"): perplexity_table,
    (ESYNC, "methods on digits"): digits_table,
    (ESYNC, "methods on images"): images_table,
    (ESYNC, "a liar"): liar_table,
    (ESYNC, "devices of the paper"): paper_table,
    (ESYNC, "accuracies on these devices"): accuracies_table,
    (TUTORIAL, "quickstart"): quickstart_table,
    (REPRODUCE, "figure 3"): functools.partial(figure_table, FIGURE_3, RULES, ATTACKS),
    (REPRODUCE, "figure 4"): functools.partial(figure_table, FIGURE_4, RULES, ATTACKS),
    (REPRODUCE, "figure 5"): functools.partial(figure_table, FIGURE_5, ASYNC_RULES, ASYNC_ATTACKS),
    (REPRODUCE, "figure 6"): functools.partial(figure_table, FIGURE_6, ASYNC_RULES, ASYNC_ATTACKS),
    (REPRODUCE, "figure 7"): figure_7_table,
    (REPRODUCE, "beside the independent simulation"): simulation_table,
}
SENTENCES = {
    README: readme_sentences,
    COMMUNICATION: communication_sentences,
    ESYNC: esync_sentences,
    ROBUSTNESS: robustness_sentences,
    REPRODUCE: reproduce_sentences,
}


def tables_of(page):
    """Return the rows of the marked tables of a page, without their heads, by name."""
    found = {}
    for name, table in re.findall(r"<!-- numbers: (.*?) -->\n\n((?:\|.*\n)+)", page.read_text(encoding="utf-8")):
        lines = table.splitlines()[2:]
        found[name] = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return found


@pytest.mark.parametrize(("page", "name"), TABLES, ids=lambda value: value if isinstance(value, str) else value.stem)
def test_tables_are_what_was_measured(page, name):
    shown, computed = tables_of(page)[name], TABLES[page, name]()
    assert len(shown) == len(computed)
    for row, wanted in zip(shown, computed, strict=True):
        assert [cell for cell, each in zip(row, wanted, strict=True) if each is not None] == [
            each.strip() for each in wanted if each is not None
        ]


@pytest.mark.parametrize("page", SENTENCES, ids=lambda page: page.stem)
def test_sentences_are_what_was_measured(page):
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert [sentence for sentence in SENTENCES[page]() if sentence not in text] == []


def test_every_marked_table_is_computed():
    pages = [README, *(ROOT / "docs").rglob("*.md")]
    assert {(page, name) for page in pages for name in tables_of(page)} == set(TABLES)


def show():
    """Print all tables and sentences."""
    for (page, name), table in TABLES.items():
        print(f"\n{page.name}: {name}")
        for row in table():
            print("| " + " | ".join("…" if cell is None else cell for cell in row) + " |")
    for page, sentences in SENTENCES.items():
        print(f"\n{page.name}", *sentences(), sep="\n- ")


if __name__ == "__main__":
    show()
