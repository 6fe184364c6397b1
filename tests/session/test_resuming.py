"""A script that is started again goes on where it was: `hpcps launch --retry` and `hpcps.torch.TorchState`."""

import json
import random
import shutil
import sys

import numpy as np
import pytest
from forked import fork
from launched_scripts import launched

torch = pytest.importorskip("torch")

import hpcps.torch as bps  # noqa: E402
from hpcps.errors import RunError, SpecError  # noqa: E402
from hpcps.records.files import read_lines  # noqa: E402
from hpcps.session.commits import Commits  # noqa: E402

SCRIPT = """
import json, os, signal, sys, torch, hpcps.torch as bps

bps.init()
torch.manual_seed(bps.rank())
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
bps.broadcast_parameters(model.state_dict())
optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model.named_parameters())
bps.log(epoch=0, loss=1.0)
state = bps.TorchState(model, optimizer, folder=sys.argv[2] if sys.argv[2:] else None, step=0, losses=[])
begins = state.step
while state.step < 6:
    if state.step == 4 and bps.rank() == 1 and not state.restored and sys.argv[1] == "lost":
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    loss = model(torch.randn(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    state.step += 1
    state.losses.append(loss.item())
    bps.log(epoch=state.step, loss=loss)
    if state.step == 3:
        state.commit()
if bps.rank() == 0:
    with open("ends", "w") as file:
        json.dump([begins, state.losses, [p.tolist() for p in model.parameters()]], file)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("transport", [pytest.param("mpi", marks=pytest.mark.soak), "pslite"], ids="over-{}".format)
def test_a_script_that_loses_a_process_goes_on_from_its_commit_and_ends_with_the_same_bits(
    tmp_path, transport, monkeypatch
):
    def undisturbed():
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["script.py", "undisturbed", "state"])
        exec(compile(SCRIPT, "script.py", "exec"), {})

    fork(2, undisturbed)
    _, losses, parameters = json.loads((tmp_path / "ends").read_text())
    text = launched(tmp_path, SCRIPT, "lost", processes=2, options=("--retry", "2", "--transport", transport))
    assert "hpcps: tried again, 1 of 2 times" in text
    assert json.loads((tmp_path / "ends").read_text()) == [3, losses, parameters]
    (run,) = (tmp_path / "results/script/runs").iterdir()
    assert (run / "DONE").exists()
    assert not (run / "state").exists()
    lines, _ = read_lines(run / "records/worker-0.jsonl").valid()
    logged = [(line["epoch"], line["step"], line["loss"]) for line in lines if line["event"] == "evaluation"]
    assert logged == [(k, k, loss) for k, loss in enumerate([1.0, *losses])]


@pytest.mark.usefixtures("starts_processes")
def test_a_script_that_always_fails_is_tried_so_many_times(tmp_path):
    text = launched(
        tmp_path, "import sys; print('tries'); sys.exit(3)", processes=1, options=("--retry", "2"), succeeds=False
    )
    assert text.count("tries") == 3
    assert "hpcps: tried again, 1 of 2 times" in text
    assert "hpcps: tried again, 2 of 2 times" in text


def written(folder, size, rank, number):
    """Write a file of a commit."""
    commits = Commits(folder, size)
    commits.prepare()
    commits.write(rank, number, memoryview(b"x"), {})


def alone(body):
    """Call a function in the session of one process."""
    bps.init(alone=True)
    try:
        return body()
    finally:
        bps.shutdown()


def test_a_state_keeps_parts_values_and_random_numbers(tmp_path):
    def drawn():
        return torch.rand(2).tolist(), random.random(), np.random.random()

    def first():
        model = torch.nn.Linear(2, 2)
        state = bps.TorchState(model, folder=tmp_path / "kept", step=3, names=["a", {"b": (1.5, None, torch.ones(2))}])
        assert not state.restored
        state.step = 7
        state.commit()
        return model.state_dict(), drawn()

    def second():
        model = torch.nn.Linear(2, 2)
        state = bps.TorchState(model, folder=tmp_path / "kept", step=0, names=[])
        assert state.restored
        assert (state.step, state.names[0], state.names[1]["b"][:2]) == (7, "a", (1.5, None))
        numbers = drawn()
        state.commit()
        return model.state_dict(), numbers

    (kept, draws), (again, same) = alone(first), alone(second)
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    assert draws == same
    assert sorted(file.name for file in (tmp_path / "kept").iterdir()) == ["rank-0-of-1-2.json", "rank-0-of-1-2.pt"]


def test_a_commit_counts_if_all_processes_have_written_it(tmp_path):
    commits = Commits(tmp_path, 2)
    assert commits.newest() == 0
    for rank, number in ((0, 1), (1, 1), (0, 2)):
        commits.write(rank, number, memoryview(b"x"), {"lines": number})
    assert commits.newest() == 1
    assert commits.recorded(0, 1) == {"lines": 1}
    commits.write(1, 2, memoryview(b"x"), {"lines": 5})
    assert commits.newest() == 2
    commits.keep(0, 2)
    assert not commits.file(0, 1).exists()
    assert commits.file(1, 1).exists()


def test_processes_that_find_different_states_say_so(tmp_path):
    def body():
        written(tmp_path / str(bps.rank()), 2, 0, 1)
        if bps.rank() == 0:
            written(tmp_path / "0", 2, 1, 1)
        with pytest.raises(
            RunError, match=r"find different states in .*: give TorchState a folder= that all of them can read"
        ):
            bps.TorchState(folder=tmp_path / str(bps.rank()), step=0)

    fork(2, body)


class Ratio(float):
    pass


class WithState:
    """Has a state that torch does not read back."""

    def state_dict(self):
        return {"best": Ratio(0.5)}

    def load_state_dict(self, state):
        pass


def test_what_a_state_refuses(tmp_path):
    def body():
        folder, w = tmp_path / "state", torch.zeros(2, requires_grad=True)
        kept = bps.TorchState(folder=folder, step=1)
        kept.commit()
        for name in ("again", "apart", "shape"):
            shutil.copytree(folder, tmp_path / name)
        written(tmp_path / "other", 2, 0, 1)
        written(tmp_path / "damaged", 1, 0, 1)
        (tmp_path / "file").touch()

        def state(name, *parts, **more):
            return bps.TorchState(*parts, folder=tmp_path / name, **more)

        for wrong, error, words in (
            (
                lambda: bps.TorchState(step=0),
                SpecError,
                "TorchState has no folder: start the script with `hpcps launch",
            ),
            (lambda: state("new", commit=0), SpecError, "a part with the name commit: use another one"),
            (
                lambda: state("new", step=object()),
                SpecError,
                "cannot keep step, which is of type object: give what has",
            ),
            (lambda: state("new", step=Ratio(1)), SpecError, "cannot keep step, which is of type Ratio: give what has"),
            (lambda: state("new", WithState()), SpecError, "cannot keep the state of model: give what has state_dict"),
            (
                lambda: state("new", ws=[w]),
                SpecError,
                "cannot keep ws: it contains tensors that require gradients, or",
            ),
            (
                lambda: state("apart", epoch=0),
                SpecError,
                "has the state of step, and this one has epoch: give the same",
            ),
            (
                lambda: state("shape", step=w),
                SpecError,
                r"step was no tensor, but 1 at the last commit, and is a tensor \[2\]",
            ),
            (
                lambda: state("other", step=0),
                SpecError,
                "the state of 2 processes, and 1 have been started: start 2, or",
            ),
            (
                lambda: state("damaged", step=0),
                RunError,
                r"rank-0-of-1-1\.pt cannot be read \(Unpickl.*\): it is damaged",
            ),
            (
                lambda: state("state", step=0),
                SpecError,
                "another TorchState uses .*state already: give all parts to one",
            ),
            (
                lambda: state("file/below", step=0),
                RunError,
                "cannot write to the folder .*below: .*; give a folder= that",
            ),
            (
                lambda: setattr(kept, "best", 1),
                SpecError,
                r"this TorchState does not keep best: give it to TorchState\(",
            ),
        ):
            with pytest.raises(error, match=words):
                wrong()

    alone(body)


def test_tensors_are_overwritten_and_numbers_of_numpy_become_those_of_python(tmp_path):
    def body(value):
        w, other = torch.zeros(3, requires_grad=True), torch.zeros(2)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([w], 0.1))
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        generator = torch.Generator().manual_seed(value)
        parts = {"w": w, "other": other, "best": np.float64(value), "schedule": schedule, "generator": generator}
        state = bps.TorchState(optimizer=optimizer, folder=tmp_path / "kept", **parts)
        if not state.restored:
            w.sum().backward()
            optimizer.step()
            schedule.step(np.float64(0.25))
            other += 1
            state.commit()
        return w.tolist(), other.tolist(), state.best, schedule.best, torch.rand(2, generator=generator).tolist()

    first, second = alone(lambda: body(1)), alone(lambda: body(2))
    assert first == second
    assert first[0][0] != 0
    assert type(second[2]) is float


def test_what_does_not_fit_is_named(tmp_path):
    def body(width, **more):
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1))
        bps.TorchState(torch.nn.Linear(2, width), optimizer, folder=tmp_path / "kept", **more).commit()

    alone(lambda: body(2, w=torch.ones(2)))
    with pytest.raises(SpecError, match=r"model cannot take the state of the last commit, which is in .*: Error.*size"):
        alone(lambda: body(3, w=torch.ones(2)))
    with pytest.raises(
        SpecError, match=r"w was a tensor \[2\] of torch.float32 at .*, and is a tensor \[2\] of torch.f"
    ):
        alone(lambda: body(2, w=torch.ones(2, dtype=torch.float64)))


def test_nobody_commits_without_the_others(tmp_path):
    """Process 1 has no data left; the last commit of all stays."""

    def body():
        state = bps.TorchState(folder=tmp_path, step=0)
        state.commit()
        if bps.rank() == 1:
            bps.join()
            return
        with pytest.raises(RunError, match=r"the processes commit different states: all must call commit.. equally of"):
            state.commit()
        bps.join()

    fork(2, body)
    assert Commits(tmp_path, 2).newest() == 1


def test_asynchronous_training_keeps_no_state(tmp_path):
    bps.init(alone=True, asynchronous=True)
    try:
        with pytest.raises(SpecError, match="TorchState is for synchronous training"):
            bps.TorchState(folder=tmp_path, step=0)
    finally:
        bps.shutdown()


def test_what_a_killed_process_has_not_finished_is_removed(tmp_path):
    written(tmp_path, 2, 0, 1)
    for name in (".rank-0-of-2-2.pt.123", "rank-0-of-2-2.json", ".rank-1-of-2-2.pt.124", "own.txt"):
        (tmp_path / name).touch()
    Commits(tmp_path, 2).keep(0, 1)
    left = [".rank-1-of-2-2.pt.124", "own.txt", "rank-0-of-2-1.json", "rank-0-of-2-1.pt"]
    assert sorted(file.name for file in tmp_path.iterdir()) == left


def test_commits_of_two_attempts_are_not_mixed(tmp_path):
    """A process has written a commit that not all have; another attempt goes on from the one before it."""
    commits = Commits(tmp_path, 2)

    def body():
        state = bps.TorchState(folder=tmp_path, step=0)
        if not state.restored:
            state.commit()
            return
        assert sorted(file.name for file in tmp_path.glob("*.pt")) == ["rank-0-of-2-1.pt", "rank-1-of-2-1.pt"]

    fork(2, body)
    commits.write(1, 2, memoryview(b"x"), {})
    fork(2, body)


@pytest.mark.usefixtures("starts_processes")
def test_a_script_that_asks_for_what_it_cannot_have_is_not_started_again(tmp_path):
    script = "import hpcps.torch as bps; bps.init(); print('tries'); bps.TorchState(step=print)"
    text = launched(tmp_path, script, processes=1, options=("--retry", "2"), succeeds=False)
    assert text.count("tries") == 1
    assert "tried again" not in text


@pytest.mark.usefixtures("starts_processes")
def test_the_files_of_a_script_that_fails_are_named(tmp_path):
    script = "import hpcps.torch as bps; bps.init(); bps.TorchState(step=0).commit(); raise SystemExit(3)"
    text = launched(tmp_path, script, processes=1, succeeds=False)
    (folder,) = tmp_path.glob("results/script/runs/*/state")
    assert f"hpcps: the last commit of the script is in {folder}: TorchState(folder=...) goes on from it" in text


def test_a_record_goes_on_after_many_attempts(tmp_path):
    """Each begins anew, and then goes on from the first commit; what is valid does not take longer each time."""
    lines = [{"event": "start", "attempt": 1}, {"event": "evaluation", "epoch": 1.0}]
    for attempt in range(2, 40):
        lines += [{"event": "start", "attempt": attempt}, {"event": "evaluation", "epoch": 0.0}]
        lines += [{"event": "start", "attempt": attempt, "continues": 2}, {"event": "evaluation", "epoch": 2.0}]
    (tmp_path / "record").write_text("".join(json.dumps(line) + "\n" for line in lines))
    valid, first = read_lines(tmp_path / "record").valid()
    assert [line["epoch"] for line in valid if line["event"] == "evaluation"] == [1.0, 2.0]
    assert first == 1
