"""Warnings about valid settings that are probably not intended; the runs are executed all the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from math import isfinite

from hpcps.attacks import Alie, Omniscient, attackers
from hpcps.attacks.shifted_mean import quantile
from hpcps.data.shards import classes_of_shards, shard_size
from hpcps.rules import Rlr
from hpcps.rules.coordinate_wise import Trimming
from hpcps.spec.heterogeneity import Heterogeneity
from hpcps.spec.problems import BUFFER, DATA, WORKERS, Problem
from hpcps.spec.schema import Run
from hpcps.spec.simulation import Modelled
from hpcps.spec.tracking import PACKAGES

_ENOUGH = 30
"""Average samples of each class from which a shard in file order has all classes, unless the file is sorted."""


def warnings_of_run(run: Run) -> Iterator[Problem]:
    """Yield the warnings about a valid run."""
    if not run.topology.alone:
        yield from _rule_has_enough_updates(run)
        yield from _alie_leaves_the_mean(run)
        yield from _somebody_is_honest(run)
        yield from _some_signs_are_trusted(run)
        yield from _imposed_steps_last(run)
        yield from _quorum_goes_on_without_the_slow(run)
        yield from _somebody_may_be_late(run)
    yield from _trackers_are_installed(run)
    yield from _warm_up_ends(run)
    yield from _time_passes(run)
    yield from _shards_have_all_classes(run)


def _rule_has_enough_updates(run: Run) -> Iterator[Problem]:
    """With two updates or fewer, no value remains between the extremes; with few more, `trim` may drop none."""
    rule, topology = run.validation.rule, run.topology
    if not isinstance(rule, Trimming) or rule.f is not None:
        return
    smallest, largest = min(map(run.updates_needed, run.combined_at_once)), max(run.combined_at_once)
    if not rule.trims_all(smallest) and (rule.trimmed(smallest) or not rule.trim):
        return
    whose = (
        f"a validator's share of the {topology.workers} workers is {smallest}"
        if topology.validators
        else (f"there are {topology.workers} workers")
    )
    if run.has_quorum:
        whose = f"a round may close with {smallest}"
    if run.buffered:
        whose = f"a buffer has {smallest}"
    more = "a larger asynchronous.buffer" if run.buffered else "more workers"
    if not rule.trims_all(smallest):
        what = f"{rule.kind} drops no update if trim times their number is less than 1"
        effect = f"with trim = {rule.trim} it is the mean; use {more}, or f = 1"
    else:
        what = f"{rule.kind} returns zero for two updates or fewer"
        effect = "the model never changes" if rule.trims_all(largest) else "such a validator changes nothing"
        effect = "such a round changes nothing" if run.has_quorum else effect
        effect += f"; use {more}"
    yield Problem(
        ("validation", "rule"),
        f"{what}, and {whose}: {effect}",
        (BUFFER,) if run.buffered else (WORKERS, ("topology", "validators")),
    )


def _trackers_are_installed(run: Run) -> Iterator[Problem]:
    """A tracker without its package fails when the run begins, and the run goes on without it."""
    for name in run.tracking.to:
        module, extra = PACKAGES[name]
        if find_spec(module) is None:
            yield Problem(
                ("tracking", "to"),
                f"{name} gets nothing, because the package {module} is not installed here: "
                f"pip install 'hpcps[{extra}]'",
            )


def _time_passes(run: Run) -> Iterator[Problem]:
    """A modelled simulation without costs and delays is over in no time."""
    machine = {"hosts", "cores", "speed", "placement", "model_scale"}
    free = Modelled().model_dump(exclude=machine)
    if (
        isinstance(run.simulation, Modelled)
        and run.simulation.model_dump(exclude=machine) == free
        and run.heterogeneity == Heterogeneity()
    ):
        yield Problem(
            ("simulation",),
            "all costs are zero, so no simulated time passes, and figures by time show nothing: set "
            "`step`, the seconds of a local step, `remote`, the links between hosts, or other costs",
        )


def _alie_leaves_the_mean(run: Run) -> Iterator[Problem]:
    """With few attackers of a combiner, z = "auto" is zero or less."""
    attack = run.attack
    if not isinstance(attack, Alie) or attack.z != "auto":
        return
    for members, f in _combiners(run):
        if 0 < f < len(members) and (z := quantile(len(members), f)) <= 0:
            effect = "it sends the mean" if z == 0 else "its updates are on the other side of the mean"
            if type(attack) is not Alie:
                effect = "most of what it sends is " + ("the mean" if z == 0 else "on the other side of the mean")
            yield Problem(
                ("attack", "z"),
                f"{attack.kind} has z = {z:.3g} for f = {f} of {len(members)} updates, so {effect}: use more "
                "attackers, or a number such as 1.5",
                (("attack", "rate"), WORKERS),
            )
            return


def _somebody_is_honest(run: Run) -> Iterator[Problem]:
    """Without an honest update of its combiner, an attack that depends on them does nothing."""
    attack = run.attack
    if not isinstance(attack, Omniscient):
        return
    for index, (members, f) in enumerate(_combiners(run)):
        if 0 < f == len(members):
            yield Problem(
                ("attack", "rate"),
                f"all {len(members)} workers of validator {index} are attackers, so {attack.kind} has no honest update "
                "there and they send their own: use fewer attackers, more workers or another seed",
                (WORKERS, ("topology", "validators")),
            )
            return


def _combiners(run: Run) -> Iterator[tuple[Sequence[int], int]]:
    """Return the workers of each combiner, and how many of them are attackers."""
    workers, combiners = run.topology.workers, run.topology.validators or 1
    chosen = attackers(run.attack, workers, run.seed)
    for members in (range(index, workers, combiners) for index in range(combiners)):
        yield members, len(chosen.intersection(members))


def _some_signs_are_trusted(run: Run) -> Iterator[Problem]:
    """The sum of n signs is at most n."""
    rule = run.validation.rule
    fewest = min(map(run.updates_needed, run.combined_at_once), default=0)
    if isinstance(rule, Rlr) and fewest < rule.threshold:
        whose, more = ("combiner", "more workers") if not run.buffered else ("buffer", "a larger asynchronous.buffer")
        yield Problem(
            ("validation", "rule"),
            f"rlr flips the sign of every coordinate, because threshold = {rule.threshold} is more than the {fewest} "
            f"updates of a {whose}: use a lower threshold, or {more}",
            (BUFFER if run.buffered else WORKERS,),
        )


def _imposed_steps_last(run: Run) -> Iterator[Problem]:
    """Only a simulation states beforehand how long a step computes; the records count the steps of other runs."""
    if not isinstance(run.simulation, Modelled):
        return
    computing = run.simulation.step.longest / run.simulation.speed
    takes = f"takes up to {computing:g} s" if isfinite(computing) else "may take any time"
    for number, each in enumerate(run.heterogeneity.classes):
        if each.seconds is not None and computing > each.seconds:
            yield Problem(
                ("heterogeneity", "classes", number, "seconds"),
                f"the computation of a step {takes} in this simulation, longer than the imposed {each.seconds:g} s: "
                "impose more, or state a shorter simulation.step",
                (("simulation", "step"),),
            )


def _quorum_goes_on_without_the_slow(run: Run) -> Iterator[Problem]:
    """Without validators worker 0 evaluates the models, so each round waits for it."""
    workers, speed_of = run.topology.workers, run.heterogeneity.speed_of
    if run.topology.validators or not run.has_quorum:
        return
    needed, own = run.updates_needed(workers), speed_of("worker", 0)
    others = [speed_of("worker", index) for index in range(1, workers)]
    # Imposed seconds and factors are not comparable: how long the computation takes is not known beforehand.
    if own.seconds is None:
        faster = sum(each.seconds is None and each.factor < own.factor for each in others)
    else:
        faster = sum(each.seconds is not None and each.seconds < own.seconds for each in others)
    if faster >= needed:
        yield Problem(
            ("train", "quorum"),
            f"a round closes with {needed} of {workers} answers, but not without worker 0, which evaluates the model "
            f"and is slower than {faster} others: use a validator, or make another worker slow",
            (("topology", "validators"), ("heterogeneity",)),
        )


def _somebody_may_be_late(run: Run) -> Iterator[Problem]:
    """A quorum of all workers leaves nobody late."""
    train = run.train
    if train.quorum is None or run.has_quorum:
        return
    for key, value in (("grace", train.grace), ("late", train.late), ("abandon", train.abandon)):
        if value != type(train).model_fields[key].default:
            reason = f"a round waits for all {run.topology.workers} workers"
            message = f"has no effect, because {reason}: leave it out, or use a lower train.quorum"
            yield Problem(("train", key), message, (("train", "quorum"), WORKERS))


def _warm_up_ends(run: Run) -> Iterator[Problem]:
    """A run that is shorter than its warm-up never has its whole learning rate."""
    warmup, train = run.train.warmup, run.train
    if warmup.epochs > train.epochs:
        message = f"the rate rises over {warmup.epochs} epochs, but the run has {train.epochs}: use fewer"
        yield Problem(("train", "warmup", "epochs"), message, (("train", "epochs"),))


def _shards_have_all_classes(run: Run) -> Iterator[Problem]:
    """Count the classes of each shard if the labels are available."""
    data, workers, classes = run.data, run.topology.workers, run.data.facts.split_classes
    size = shard_size(data, run.largest_batch)
    if data.split.alike and (data.facts.groups is not None or size >= _ENOUGH * classes):
        return
    found = classes_of_shards(data, size, run.seed, held_out=run.holds_out, least=run.largest_batch)
    involved = (("data", "alpha"), ("data", "shards"), ("data", "limit"), WORKERS)
    if found is None:
        if not data.split.alike:
            message = f"cannot check that every shard has all {classes} classes: the files of {data.name} are missing"
            yield Problem(("data", "split"), message, (DATA,))
    elif lacking := int((found[:workers] < classes).sum()):
        fewest = int(found[:workers].argmin())
        message = f"{lacking} of {workers} workers lack classes"
        example = f"worker {fewest} has {found[fewest]} of {classes}"
        yield Problem(("data", "split"), f"{message}; {example}", involved)
        yield from _the_reference_has_more_classes(run, message)
    if not run.topology.validators:
        return
    if data.validation_split == "as_workers":
        has = "" if found is None else f", with {found[-1]} of {classes} classes"
        message = f"the validators' shard is split like the workers' shards{has}: \"iid\" makes it a uniform sample"
        yield Problem(("data", "validation_split"), message, involved)
    elif found is not None and found[-1] < classes:
        message = f"the validators' shard of {size} samples has {found[-1]} of {classes} classes"
        yield Problem(("data", "shards"), f"{message}: use fewer shards or more samples", involved)


def _the_reference_has_more_classes(run: Run, lacking: str) -> Iterator[Problem]:
    """An update from few classes is not like the validator's own update from all of them."""
    rule, data = run.validation.rule, run.data
    if "reference" in rule.requires and data.validation_split == "iid":
        yield Problem(
            ("validation", "rule"),
            f"{rule.kind} compares updates with the validator's own, of all classes, and {lacking}: it may accept no "
            "update in most rounds, which `hpcps status` shows as stalled; a rule without a reference does not",
            (("data", "split"), ("data", "alpha")),
        )
