"""`hpcps check`: lists the points of an experiment file, or all of its mistakes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec

from hpcps.attacks.sending import SendingAttack
from hpcps.cli.arguments import add_point_arguments, add_results_argument
from hpcps.errors import HpcpsError
from hpcps.execution.sweep.claims import refusals
from hpcps.inputs import printable
from hpcps.launch.batch import allocation
from hpcps.launch.dev_shm import shortage, space
from hpcps.launch.hostfile import Host
from hpcps.launch.placement import gpu_assignment, most_on_a_host
from hpcps.spec.load import LoadedExperiment, activate_plugins, load_experiment
from hpcps.spec.point import Point
from hpcps.spec.problems import quote
from hpcps.spec.schema import Run
from hpcps.spec.search import TpeSearch
from hpcps.spec.search_groups import SearchGroup
from hpcps.spec.settings import of_headings
from hpcps.training.trial import try_components, warnings_of_compression

_MOST_QUORUMS = 3
"""Descriptions of quorums that are printed in full."""
_SECONDS = 20.0
"""Deadline of the batch system's command that lists the hosts of a job."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("check", help="check an experiment file and list its points", description=__doc__)
    parser.add_argument("file", nargs="?", metavar="FILE", help="the experiment file")
    add_point_arguments(parser)
    parser.add_argument(
        "--schema",
        action="store_true",
        help="print the JSON Schema of experiment files, including the plugins of FILE if it is given",
    )
    add_results_argument(parser)
    parser.set_defaults(handler=handle, parser=parser)


def handle(args: argparse.Namespace) -> int:
    """Print the summary, or the JSON Schema; a file with mistakes raises a `SpecError` that lists them."""
    if args.schema:
        from hpcps.spec.reference import schema_text

        if args.file is not None:
            activate_plugins(args.file)
        print(schema_text(), end="")
        return 0
    if args.file is None:
        args.parser.error("FILE is required without --schema")
    experiment = load_experiment(args.file, args.overrides, only=args.only, results=args.results)
    points = experiment.chosen
    try_components(point.run for point in points)
    print(summary(experiment))
    hosts = allocation(_SECONDS).hosts
    if gpus := gpu_assignment((point.run for point in points), hosts):
        print("\n".join(["", *(f"GPUs on {line}" for line in gpus)]))
    results = args.results.absolute() / experiment.name
    # The file may be for another machine, and no folder is created here.
    there = next(path for path in (results, *results.parents) if path.exists())
    for warning in dict.fromkeys(warnings_of_compression(point.run for point in points)):
        print(f"hpcps: warning: {warning}", file=sys.stderr)
    if short := _short_of_shm(points, hosts):
        print(
            f"hpcps: warning: {short}; `hpcps doctor FILE` measures what the MPI of this machine needs", file=sys.stderr
        )
    for error in (*refusals(points, there), *_without_gpu(points)):
        print(f"hpcps: warning: `hpcps run` refuses it on this machine: {error}", file=sys.stderr)
    return 0


def _short_of_shm(points: Sequence[Point], hosts: Sequence[Host]) -> str:
    """Return a message if ranks of MPI may need more of /dev/shm than this machine has free; empty otherwise."""
    over_mpi = [point.run for point in points if "mpi" in point.run.transport.offers]
    if not over_mpi:
        return ""
    return shortage(max(most_on_a_host(run, hosts) for run in over_mpi), space())


def _without_gpu(points: Sequence[Point]) -> Iterator[HpcpsError]:
    """Yield an error if a run that needs a GPU for torch finds none; `hpcps run` leaves this to its processes."""
    run = next((p.run for p in points if p.run.train.device == "cuda" and p.run.model.backend == "torch"), None)
    if run is None or find_spec("torch") is None:
        return
    from hpcps.training.pytorch.device import prepare_device, settings_kept

    try:
        with settings_kept():
            prepare_device(run.train)
    except HpcpsError as error:
        yield error


def summary(experiment: LoadedExperiment) -> str:
    """Describe an experiment and list the selected points."""
    points, count = experiment.chosen, experiment.count
    runs = [point.run for point in points]
    some = f"{len(points)} of " if len(points) < count else ""
    lines = [f"{experiment.name}: {some}{count} point{'s' * (count > 1)}, no mistakes"]
    if runs[0].description:
        lines += map(printable, runs[0].description.splitlines())
    lines.append("")
    aspects = {title: _common(runs, describe) for title, describe in _ASPECTS.items()}
    aspects["settings"] = ", ".join(_settings(points))
    lines += [f"{title:<12}{described}" for title, described in aspects.items() if described]
    lines += ["", f"{'point':>5}  {'run':<10}  label"]
    lines += [f"{point.index:>5}  {point.run_id}  {point.label}" for point in points]
    if experiment.search:
        lines += ["", *_search(experiment.search)]
    if experiment.warnings:
        lines += ["", *(f"warning: {warning}" for warning in experiment.warnings)]
    return "\n".join(lines)


def _search(groups: Sequence[SearchGroup]) -> Iterator[str]:
    """Describe what a search tries, and what it has chosen."""
    search, first = groups[0].search, groups[0]
    runs = {p.run_id for group in groups for tried in group.configurations for p in tried.rungs[0]}
    keys = ", ".join(first.configurations[0].values)
    of_each = f", for each {' and '.join(search.per)}" if search.per else ""
    epochs = [_count(rung[0].run.train.epochs, "epoch") for rung in first.configurations[0].rungs]
    lines = [f"search      {search.kind}: {_count(len(first.configurations), 'configuration')} of {keys}{of_each}"]
    lines.append(
        f"            {_count(len(runs), 'run')} of {epochs[0]} on {100 * (1 - search.holdout):g} % of the data"
    )
    if len(epochs) > 1:
        sizes = zip(first.sizes[1:], epochs[1:], strict=True)
        lines.append(f"            then the best {' and '.join(f'{size} for {long}' for size, long in sizes)}")
    if isinstance(search, TpeSearch) and (left := search.proposals - len(first.proposed)):
        lines.append(f"            then {left} proposed from the scores of those before, {first.to_propose} at a time")
    for group in groups:
        values = group.chosen["values"] if group.chosen else {}
        said = ", ".join(f"{key} = {quote(value)}" for key, value in values.items())
        name = f"{group.label}: " if group.label else ""
        lines.append(f"            {name}{said or 'not searched yet: `hpcps search` does it'}")
    return iter(lines)


def _common(runs: Sequence[Run], describe: Callable[[Run], str]) -> str:
    """Join the descriptions that differ; '' if all are empty."""
    described = dict.fromkeys(describe(run) for run in runs)
    if describe is _quorum and len(described) > _MOST_QUORUMS:
        return _numbers_of_answers(runs)
    return "; or ".join(each or "none" for each in described) if any(described) else ""


def _count(number: int | None, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _topology(run: Run) -> str:
    counts = {"server": run.topology.servers, "validator": run.topology.validators, "worker": run.topology.workers}
    counts |= {"evaluator": 1} if run.topology.evaluators else {}
    counts |= {"adversary": 1} if run.has_adversary else {}
    if run.topology.alone:
        return f"single-process baseline, {_processes(run)}"
    if run.collective:
        workers = _count(run.topology.workers, "worker")
        workers += ", 1 evaluator" if run.topology.evaluators else ""
        return f"{workers} in exchange {run.train.exchange}: {_processes(run)}"
    parts = ", ".join(_count(count, role) for role, count in counts.items())
    return f"{parts}: {_processes(run)}"


def _quorum(run: Run) -> str:
    """Say with how many answers a round may close; '' without a quorum."""
    if not run.has_quorum:
        return "" if run.train.quorum is None else f"a round waits for all {_count(run.topology.workers, 'worker')}"
    train, each = run.train, "each validator: " if run.topology.validators > 1 else ""
    closes = f"closes {train.grace:g} s after" if train.grace else "closes with"
    fewest = _any_of(f"{run.updates_needed(members)} of {members}" for members in run.shares)
    late = {"drop": "late updates are dropped", "next": "late updates enter the next round"}[train.late]
    left = f"; late workers abandon their steps ({train.abandoned})" if train.abandon else ""
    combines = f"{run.validation.rule.title} combines their updates"
    return f"{each}a round {closes} {fewest} answers{_absences([run])}; {combines}; {late}{left}"


def _numbers_of_answers(runs: Sequence[Run]) -> str:
    """Describe the quorums of a sweep: by their numbers of answers, without what else differs."""
    numbers: dict[int, set[int]] = {}
    for run in runs:
        for members in run.shares:
            numbers.setdefault(members, set()).add(run.updates_needed(members))
    fewest = ", or ".join(f"{_any_of(map(str, sorted(some)))} of {n}" for n, some in sorted(numbers.items()))
    each = "each validator: " if all(run.topology.validators > 1 for run in runs) else ""
    return f"{each}a round closes with {fewest} answers{_absences(runs)}"


def _any_of(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _absences(runs: Sequence[Run]) -> str:
    """Say that a rule may get fewer updates than there are answers: an absent worker has answered."""
    silent = any(isinstance(run.attack, SendingAttack) and run.attack.withholds for run in runs)
    absent = silent or any(run.communication.participation < 1 for run in runs)
    return ", of which some may be absences" if absent else ""


def _processes(run: Run) -> str:
    if run.transport.in_process:
        return "all in one process"
    return f"{run.processes} process{'es' * (run.processes > 1)} over {run.transport.kind}"


def _model(run: Run) -> str:
    data = run.data
    limit = f", first {_count(data.limit, 'sample')}" if data.limit else ""
    shards = _count(data.shards, "shard")
    size = f" enlarged to {data.resize} by {data.resize}" if data.resize else ""
    return f"{run.model.name} ({run.model.backend}) on {data.name}{size}, {shards} ({data.split.kind}){limit}"


def _training(run: Run) -> str:
    train = run.train
    steps = f"local steps by {train.policy.kind}" if train.policy else _count(train.steps_per_round, "local step")
    return (
        f"{train.mode}, {_count(train.epochs, 'epoch')}, batches of {train.batch_size}, "
        f"{steps}, {train.optimizer.name} lr {train.optimizer.lr}"
    )


def _classes(run: Run) -> str:
    found = []
    classes = run.heterogeneity.classes if run.topology.workers else ()
    for each, members in zip(classes, run.heterogeneity.members(), strict=False):
        imposed = f"steps of {each.seconds:g} s" if each.seconds else f"step time x{each.factor:g}"
        facts = [imposed]
        facts += [f"x{change.factor:g} after {_count(change.epoch, 'epoch')}" for change in each.then]
        facts += [f"batches of {each.batch_size}"] if each.batch_size else []
        found.append(f"{_count(len(members), 'worker')} {each.name} ({', '.join(facts)})")
    return ", ".join(found)


def _losses(run: Run) -> str:
    """Describe what becomes of lost processes, if the run survives some."""
    if not run.survive.workers:
        return ""
    needed = ""
    if run.train.mode == "sync":
        least = _any_of(f"{run.workers_needed(members)} of {members}" for members in run.shares)
        needed = f"; a round needs {least} workers, or waits"
    if run.shares_batches:
        needed += "; the others take its samples meanwhile"
    where = f" (on {_any_of(run.survive.spares)} if its host is gone)" if run.survive.spares else ""
    servers = "; the standby of a lost server takes its place" if run.survive.servers else ""
    if not run.survive.validators:
        return f"a lost worker is replaced{where}{needed}{servers}; any other lost process ends the run"
    others = "all wait for the replacement of a lost validator"
    if run.topology.validators > 1:
        others = "others serve the workers of a lost validator"
    return f"a lost worker is replaced{where}{needed}; {others}{servers}; any other lost process ends the run"


def _sending(run: Run) -> str:
    return f"participation {run.communication.participation}, skip rate {run.communication.skip_rate}"


_DESCRIBED = ("train.mode", "train.local_steps", "communication.participation", "communication.skip_rate")
"""Keys that other lines of the summary describe."""


def _settings(points: Sequence[Point]) -> list[str]:
    """Return the settings that differ from a plain file and that no label states."""
    runs = [point.run.model_dump(mode="json") for point in points]
    swept = [[tuple(key.split(".")) for key in point.swept] for point in points]
    return list(dict.fromkeys(text for texts in of_headings(runs, swept, None, _DESCRIBED) for text in texts))


def _fidelity(run: Run) -> str:
    chosen = {"evaluate": run.validation.evaluate, "batchnorm": run.validation.batchnorm}
    values = ", ".join(f"{key} {value}" for key, value in chosen.items())
    return f"{run.fidelity}: {values}, first step {run.train.first_step}"


_ASPECTS: dict[str, Callable[[Run], str]] = {
    "topology": _topology,
    "model": _model,
    "training": _training,
    "classes": _classes,
    "quorum": _quorum,
    "losses": _losses,
    "sending": _sending,
    "fidelity": _fidelity,
    "seed": lambda run: str(run.seed),
}
