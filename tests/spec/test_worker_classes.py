"""Classes of workers: who is in which, how fast they are, and which mistakes are found."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcps.errors import SpecError
from hpcps.spec.heterogeneity import Heterogeneity, WorkerClass
from hpcps.spec.load import load_experiment

Write = Callable[..., Path]
CLASS = "[[heterogeneity.classes]]\n"
FAST = f"{CLASS}name = 'fast'\nworkers = 3\n"


def test_counts_take_the_workers_that_no_list_has() -> None:
    classes = [{"name": "a", "workers": 2}, {"name": "b", "workers": [1, 4]}, {"name": "c", "workers": 1}]
    assert Heterogeneity.model_validate({"classes": classes}).members() == [(0, 2), (1, 4), (3,)]


def test_a_speed_follows_the_epochs_of_the_worker() -> None:
    changes = [{"epoch": 2, "factor": 3}, {"epoch": 5, "factor": 1}]
    slow = WorkerClass.model_validate({"name": "slow", "workers": 1, "factor": 7, "then": changes})
    assert [slow.slowdown(range(4 * e, 4 * e + 4), 4) for e in range(7)] == [7, 7, 3, 3, 3, 1, 1]
    assert slow.slowdown(range(7, 11), 4) == (7 + 3 * 3) / 4, "the steps of a round that is in two epochs"
    assert slow.slowdown(range(8, 8), 4) == 7, "no step, no time"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (f"{FAST}{CLASS}name = 'slow'\nworkers = 2",
         "16: heterogeneity.classes[1].workers: the classes have 5 workers in all, and there are 4: use fewer"),
        (f"{CLASS}name = 'a'\nworkers = [0, 4]", "13: heterogeneity.classes[0].workers: [4] are not among"),
        (f"{CLASS}name = 'a'\nworkers = []", "13: heterogeneity.classes[0].workers: an empty list"),
        (f"{CLASS}name = 'a'\nworkers = [-1]",
         "13: heterogeneity.classes[0].workers: expects a whole number from 1 to 65536 or a list"),
        (f"{CLASS}name = 'a'\nworkers = [2, 2]", "13: heterogeneity.classes[0].workers: lists [2] twice"),
        (f"{CLASS}name = 'a'\nworkers = [2]\n{CLASS}name = 'b'\nworkers = [2]",
         '16: heterogeneity.classes[1].workers: worker 2 is in class "a" too: a worker has one class'),
        (f"[heterogeneity.slow]\nworkers = [1]\nfactor = 2\n{FAST}",
         "16: heterogeneity.classes[0].workers: worker 1 is in heterogeneity.slow too"),
        (f"{FAST}{CLASS}name = 'fast'\nworkers = 1", '15: heterogeneity.classes[1].name: "fast" is the name'),
        (f"{FAST}batch_size = 500", "14: heterogeneity.classes[0].batch_size: 1437 training samples in 5 shards"),
        (f"{FAST}then = [{{ epoch = 5, factor = 2 }}, {{ epoch = 5, factor = 3 }}]",
         "14: heterogeneity.classes[0].then: epochs [5, 5] must increase"),
        (f"{FAST}factor = 0.5", "14: heterogeneity.classes[0].factor: expects a number from 1 to 1000000"),
        (f"{FAST}seconds = 0", "14: heterogeneity.classes[0].seconds: expects a number > 0"),
        (f"{FAST}seconds = 2\nfactor = 3",
         "14: heterogeneity.classes[0].seconds: factor states the speed of this class too: leave one of them out"),
        (f"{FAST}seconds = 2\nthen = [{{ epoch = 5, factor = 2 }}]",
         "14: heterogeneity.classes[0].seconds: then states the speed of this class too"),
        (f"{FAST}factr = 2", "14: heterogeneity.classes[0].factr: unknown key: did you mean factor?"),
        (f"{FAST}then = [{{ epoch = 5 }}]", "14: heterogeneity.classes[0].then[0].factor: required but missing"),
        ("[heterogeneity]\nclasses = 3", "12: heterogeneity.classes: expects a list of tables, got 3"),
        (f"{FAST}factor = 2\n[transport]\nkind = 'inproc'", "14: heterogeneity.classes[0].factor: in one process"),
    ],
)  # fmt: skip
def test_mistakes(write: Write, more: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_experiment(write(more))
    (line,) = [line for line in str(caught.value).splitlines() if line.startswith("  /")]
    assert line.partition(".toml:")[2].startswith(expected)


def test_classes_change_the_id_and_no_class_does_not(write: Write) -> None:
    sized = "batch_size = 16\nthen = [{ epoch = 3, factor = 2 }]"
    imposed = [FAST + "seconds = 2", FAST + "seconds = 3"]
    own = [FAST + "factor = 2", *imposed, FAST + "batch_size = 16", FAST + sized]
    files = ["", "[heterogeneity]\nclasses = []", FAST, *own]
    ids = [load_experiment(write(more)).points[0].run_id for more in files]
    assert ids[0] == ids[1]
    assert len(set(ids)) == len(ids) - 1


def test_a_sweep_of_classes_has_labels(write: Write) -> None:
    values = ", ".join(f"[{{ name = 'slow', workers = 1, factor = {factor} }}]" for factor in (10, 100))
    points = load_experiment(write(f"[[sweep]]\n'heterogeneity.classes' = [{values}]")).points
    assert [p.label for p in points] == ["classes [slow workers 1 factor 10]", "classes [slow workers 1 factor 100]"]


@pytest.mark.parametrize(
    ("workers", "speed", "more", "told"),
    [
        ("[0]", "seconds = 2.0", ["train.quorum=3"], True),
        ("[0]", "seconds = 2.0", ["train.quorum=3", "topology.validators=1"], False),
        ("[0]", "seconds = 2.0", ["train.quorum=4"], False),
        ("[0]", "seconds = 0.2", ["train.quorum=3"], False),
        ("[3]", "seconds = 2.0", ["train.quorum=3"], False),
        # The round needs a slow worker anyway, and then it need not wait longer for worker 0.
        ("[0, 1]", "seconds = 2.0", ["train.quorum=3"], False),
        ("[0, 1]", "seconds = 2.0", ["train.quorum=2"], True),
        ("[0]", "factor = 2.0", ["train.quorum=3"], False),
    ],
)
def test_a_quorum_waits_for_a_slow_worker_0(
    write: Write, workers: str, speed: str, more: list[str], told: bool
) -> None:
    classes = f"[[heterogeneity.classes]]\nname = 'slow'\nworkers = {workers}\n{speed}\n"
    classes += f"[[heterogeneity.classes]]\nname = 'rest'\nworkers = {4 - len(json.loads(workers))}\nseconds = 0.5\n"
    found = [str(each) for each in load_experiment(write(classes), ["topology.validators=0", *more]).warnings]
    found = [each for each in found if "not without worker 0" in each]
    assert len(found) == told


def test_a_quorum_waits_for_worker_0_with_a_factor(write: Write) -> None:
    keys = ["topology.validators=0", "train.quorum=0.5", "heterogeneity.slow={ workers = [0], factor = 3.0 }"]
    (found,) = load_experiment(write(""), keys).warnings
    assert (
        "closes with 2 of 4 answers, but not without worker 0, which evaluates the model and is slower than 3"
        in str(found)
    )


def test_a_quorum_of_all_workers_leaves_nobody_late(write: Write) -> None:
    path = write("")
    keys = ["train.quorum=4", "train.grace=1", "train.abandon=true", "train.local_steps=2"]
    grace, abandon = load_experiment(path, keys).warnings
    assert "train.grace: has no effect, because a round waits for all 4 workers" in grace
    assert "train.abandon: has no effect" in abandon
    assert not load_experiment(path, ["train.quorum=3", "train.grace=1"]).warnings


def test_imposed_seconds_are_compared_with_a_simulated_step(write: Write) -> None:
    """Only then is the time of the computation known beforehand."""
    text = f"{FAST}seconds = 0.5\n[transport]\nkind = 'inproc'\n[simulation]\nkind = 'modelled'\n"

    def warnings_of_run(step: str, more: str = "") -> list[str]:
        found = load_experiment(write(f"{text}{more}step = {step}")).warnings
        return [str(each) for each in found if "a step" in str(each)]

    assert not warnings_of_run("{ kind = 'constant', seconds = 0.5 }")
    assert not load_experiment(write(f"{FAST}seconds = 0.5\n[transport]\nkind = 'inproc'")).warnings
    (found,) = warnings_of_run("{ kind = 'uniform', low = 0.1, high = 0.6 }")
    assert "takes up to 0.6 s in this simulation, longer than the imposed 0.5 s" in found
    (found,) = warnings_of_run("{ kind = 'constant', seconds = 0.3 }", "speed = 0.5\n")
    assert "takes up to 0.6 s" in found
    (found,) = warnings_of_run("{ kind = 'lognormal', median = 0.1 }")
    assert "may take any time" in found


def test_a_mistake_in_a_class_hides_no_other(write: Write) -> None:
    with pytest.raises(SpecError) as caught:
        load_experiment(write(f"{FAST}factor = 'x'\n[communication]\nskip_rate = 2\n[data.x]\n[attack]\nkind = 'none'"))
    assert "classes[0].factor" in str(caught.value)
    with pytest.raises(SpecError) as caught:
        load_experiment(write(f"mode = 'async'\n{FAST}factor = 'x'"))
    assert "validation.rule: average is for" in str(caught.value)
