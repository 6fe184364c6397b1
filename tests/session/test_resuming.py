"""A script that is started again goes on where it was: `hpcps launch --retry` and `hpcps.torch.TorchState`."""

import json
import random
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
state = bps.TorchState(*sys.argv[2:], model=model, optimizer=optimizer, step=0, losses=[])
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
    assert logged == [(k, k, loss) for k, loss in enumerate(losses, start=1)]


def test_a_script_that_always_fails_is_tried_so_many_times(tmp_path):
    text = launched(
        tmp_path, "import sys; print('tries'); sys.exit(3)", processes=1, options=("--retry", "2"), succeeds=False
    )
    assert text.count("tries") == 3
    assert "hpcps: tried again, 1 of 2 times" in text
    assert "hpcps: tried again, 2 of 2 times" in text


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
        state = bps.TorchState(tmp_path / "kept", model=model, step=3, names=["a", {"b": (1.5, None, torch.ones(2))}])
        assert not state.restored
        state.step = 7
        state.commit()
        return model.state_dict(), drawn()

    def second():
        model = torch.nn.Linear(2, 2)
        state = bps.TorchState(tmp_path / "kept", model=model, step=0, names=[])
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
    assert commits.recorded(0) == {"lines": 1}
    commits.write(1, 2, memoryview(b"x"), {"lines": 5})
    assert commits.newest() == 2
    commits.keep(0, 2)
    assert not commits.file(0, 1).exists()
    assert commits.file(1, 1).exists()


def test_processes_that_find_different_states_say_so(tmp_path):
    def body():
        Commits(tmp_path / str(bps.rank()), 2).write(0, 1, memoryview(b"x"), {})
        if bps.rank() == 0:
            Commits(tmp_path / "0", 2).write(1, 1, memoryview(b"x"), {})
        with pytest.raises(
            RunError, match=r"find different states in .*: give TorchState a folder= that all of them can read"
        ):
            bps.TorchState(tmp_path / str(bps.rank()), step=0)

    fork(2, body)


def test_what_a_state_refuses(tmp_path):
    def body():
        folder = tmp_path / "state"
        bps.TorchState(folder, step=1).commit()
        Commits(tmp_path / "other", 2).write(0, 1, memoryview(b"x"), {})
        Commits(tmp_path / "damaged", 1).write(0, 1, memoryview(b"x"), {})
        for wrong, error, words in (
            (
                lambda: bps.TorchState(step=0),
                SpecError,
                "TorchState has no folder: start the script with `hpcps launch`, or give",
            ),
            (lambda: bps.TorchState(folder, commit=0), SpecError, "a part with the name commit: use another one"),
            (
                lambda: bps.TorchState(folder, step=object()),
                SpecError,
                "TorchState cannot keep step, which is of type object: give",
            ),
            (
                lambda: bps.TorchState(folder, epoch=0),
                SpecError,
                "has the state of step, and this one has epoch: give the same",
            ),
            (
                lambda: bps.TorchState(tmp_path / "other", step=0),
                SpecError,
                "the state of 2 processes, and 1 have been started",
            ),
            (
                lambda: bps.TorchState(tmp_path / "damaged", step=0),
                RunError,
                r"rank-0-of-1-1\.pt is damaged: remove its folder",
            ),
        ):
            with pytest.raises(error, match=words):
                wrong()

    alone(body)


def test_a_state_that_cannot_be_written_says_why(tmp_path):
    (tmp_path / "file").write_text(json.dumps({}))

    def body():
        with pytest.raises(RunError, match=r"cannot be read: Not a directory"):
            bps.TorchState(tmp_path / "file" / "below", step=0).commit()

    alone(body)
