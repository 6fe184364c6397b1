"""A script goes on without a process that it loses, and with its replacement: `hpcps launch --survive`."""

import json
import sys

import pytest
from forked import fork
from launched_scripts import launched

torch = pytest.importorskip("torch")

import hpcps.torch as bps  # noqa: E402
from hpcps.cli.main import main  # noqa: E402
from hpcps.errors import RunError, SpecError  # noqa: E402
from hpcps.launch.arrivals import Arrivals  # noqa: E402
from hpcps.launch.generations import Generation  # noqa: E402
from hpcps.launch.losses import Loss, Losses, Replacements  # noqa: E402
from hpcps.launch.plan import Plan, Rank, Script  # noqa: E402
from hpcps.records.files import read_lines  # noqa: E402
from hpcps.records.status import SweepProgress  # noqa: E402
from hpcps.session.join import LaunchedSession  # noqa: E402
from hpcps.torch.kept import KeptCommits  # noqa: E402
from hpcps.transport.process_group import LostError  # noqa: E402

pytestmark = pytest.mark.usefixtures("starts_processes")

SCRIPT = """
import glob, json, os, signal, sys, torch, hpcps.torch as bps

bps.init()
torch.manual_seed(bps.rank())
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model.named_parameters())

def kill(who, step):
    "Kill a process, once."
    flag = f"{who}-{step}"
    if who.startswith("worker") and int(who[-1]) == bps.rank():
        if not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    elif bps.rank() == 0 and not who.startswith("worker") and not os.path.exists(flag):
        open(flag, "w").close()
        lines = open(glob.glob(f"results/*/runs/*/records/{who}.jsonl")[0]).read().splitlines()
        os.kill(json.loads(lines[-1 if len(lines) == 1 else 0])["pid"], signal.SIGKILL)

@bps.elastic.run
def train(state):
    while state.step < 6:
        for word in sys.argv[1:]:
            who, _, step = word.partition("@")
            if int(step) == state.step:
                kill(who, step)
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        state.step += 1
        state.losses.append(loss.item())
        bps.log(epoch=state.step, loss=loss)
        state.commit()

train(bps.TorchState(model, optimizer, folder=globals().get("folder"), step=0, losses=[]))
with open(f"ends-{bps.rank()}", "w") as file:
    json.dump([state for state in [[p.tolist() for p in model.parameters()], torch.rand(1).item()]], file)
"""
SURVIVES = "--transport", "pslite", "--survive"


def ends(folder):
    return [json.loads((folder / f"ends-{rank}").read_text()) for rank in range(3)]


@pytest.fixture
def undisturbed(tmp_path, monkeypatch):
    def body():
        (tmp_path / "undisturbed").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "undisturbed")
        monkeypatch.setattr(sys, "argv", ["script.py"])
        exec(compile(SCRIPT, "script.py", "exec"), {"folder": "state"})

    fork(3, body, seconds=140.0)
    return ends(tmp_path / "undisturbed")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(["worker-1@3"], id="one"),
        pytest.param(["worker-2@0", "worker-0@4"], id="the first step, and rank 0", marks=pytest.mark.soak),
        pytest.param(["worker-0@2", "worker-2@2"], id="two at once", marks=pytest.mark.soak),
        pytest.param(["worker-1@1", "worker-1@2", "worker-1@5"], id="replacements", marks=pytest.mark.soak),
        pytest.param(["server-0@2"], id="a server", marks=pytest.mark.soak),
    ],
)
def test_all_repeat_the_step_in_which_a_process_is_killed_and_end_with_the_same_bits(tmp_path, undisturbed, kills):
    servers = ("--servers", "1") if any("server" in word for word in kills) else ()
    text = launched(tmp_path, SCRIPT, *kills, options=(*SURVIVES, *servers))
    assert text.count(" is replaced (") == len(kills)
    assert ends(tmp_path) == undisturbed
    (run,) = (tmp_path / "results/script/runs").iterdir()
    assert (run / "DONE").exists()
    (status,) = SweepProgress([run]).poll()
    assert status.state == "done"
    assert sorted({line["process"] for line in status.lost}) == sorted({word.partition("@")[0] for word in kills})
    lines, _ = read_lines(run / "records/worker-0.jsonl").valid()
    assert [line["epoch"] for line in lines if line["event"] == "evaluation"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.thorough
def test_an_exception_of_the_script_ends_it(tmp_path):
    failing = SCRIPT.replace("        optimizer.zero_grad()\n", "        if bps.rank() == state.step == 1: 1 / 0\n")
    text = launched(tmp_path, failing, options=SURVIVES, succeeds=False)
    assert "worker-1 on" in text
    assert "failed in phase script: ZeroDivisionError: division by zero" in text
    assert "replaced" not in text


@pytest.mark.soak
def test_a_process_that_is_lost_at_each_start_is_not_replaced_for_ever(tmp_path):
    failing = SCRIPT.replace("bps.init()\n", "bps.init()\nif bps.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n")
    text = launched(tmp_path, failing, processes=2, options=SURVIVES, succeeds=False)
    assert "worker-1 has been lost 6 times without a commit in between, and is not replaced any more" in text
    assert "the process was killed by signal 9 (SIGKILL)" in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "--survive needs --transport pslite: over mpi, all processes end when one is lost"),
        (["--transport", "pslite", "--trace"], "a script that survives the loss of processes cannot be traced"),
    ],
)
def test_what_cannot_survive_is_refused(tmp_path, monkeypatch, capsys, options, expected):
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "-n", "2", "--survive", *options, "--dry-run", "python", "train.py"]) != 0
    assert expected in capsys.readouterr().err


def test_a_script_that_survives_exchanges_only_what_all_repeat():
    session = object.__new__(LaunchedSession)
    session.exchanges = False
    with pytest.raises(SpecError, match=r"exchanges tensors in the function that it gives to hpcps.torch.elastic.run"):
        session.start()


def plan_of(survives=True):
    world = (Rank(0, "worker", 0, "localhost"), Rank(1, "worker", 1, "localhost"), Rank(2, "scheduler", 0, "localhost"))
    return Plan(world, (), mpi=False, script=Script(("python",), "/", 1, survives=survives))


def test_each_loss_begins_a_generation(tmp_path):
    plan, file = plan_of(), tmp_path / "plan.json"
    first = Generation(plan, file)
    first.check()
    assert (first.number, first.file, first.is_over(wait=False)) == (0, file, False)
    loss = Loss("worker", 1, "n01", "was killed by signal 9 (SIGKILL)")
    Losses(file).add("worker-1.0", loss)
    with pytest.raises(LostError, match=r"worker-1 on n01 is lost: was killed by signal 9 \(SIGKILL\)"):
        first.check()
    assert first.is_over(wait=False)
    second = Generation(plan, file)
    assert (second.number, second.is_over(wait=False)) == (1, False)
    assert second.file != file
    assert second.since(first) == [loss]
    other = Generation(plan_of(survives=False), file)
    assert (other.number, other.is_over(wait=True)) == (0, False)


def test_a_process_that_waits_for_others_notices_that_a_generation_is_over(tmp_path):
    generation = Generation(plan_of(), tmp_path / "plan.json")
    Losses(tmp_path / "plan.json").add("worker-1.0", Loss("worker", 1, "n01", "died"))
    with pytest.raises(LostError):
        Arrivals(generation.file).arrive("worker-0", ["worker-0", "worker-1"], 60.0, interrupt=generation.check)


def test_a_rank_that_is_lost_again_and_again_is_replaced_if_there_was_a_commit_in_between(tmp_path):
    replacements, losses, rank = (
        Replacements(tmp_path / "plan.json"),
        Losses(tmp_path / "plan.json"),
        plan_of().world[1],
    )
    for number in range(12):
        losses.note_commit(number)
        assert not replacements.refusal(rank, number, "died")
    for number in range(12, 16):
        assert not replacements.refusal(rank, number, "died")
    assert "worker-1 has been lost 6 times" in replacements.refusal(rank, 16, "died")
    assert not replacements.refusal(plan_of().world[0], 0, "died")
    assert len(losses.names()) == 17


def test_all_ranks_of_a_script_may_be_lost_if_it_survives_that():
    assert plan_of().replaceable == {0, 1, 2}
    assert plan_of(survives=False).replaceable == frozenset()


class Parts:
    """A shared part and one that differs between the processes."""

    def __init__(self, weights, own):
        self.states = {"weights": torch.tensor(weights), "own": own}
        self.kept = KeptCommits(self.take, self.states.update, self.states.update)

    def take(self):
        return {"weights": self.states["weights"]}, {"own": self.states["own"]}

    def found(self):
        return self.states["weights"].item(), self.states["own"]


def test_a_replacement_gets_the_last_commit_from_another_process():
    def body():
        parts = Parts(1.0 + bps.rank(), f"of {bps.rank()}")
        assert parts.kept.agree() == 0
        assert parts.found() == (1.0, f"of {bps.rank()}")  # all begin with the weights of process 0
        parts.states["weights"] += 4.0
        parts.states["own"] += " at 5"
        parts.kept.commit()
        parts.states["weights"] += 4.0
        if bps.rank() == 0:
            parts = Parts(0.0, "new")  # also process 0 may be lost
        assert parts.kept.agree() == 1
        assert parts.found() == (5.0, f"of {bps.rank()} at 5")

    fork(3, body)


def test_a_commit_that_one_process_has_ended_counts_for_all():
    def body():
        parts = Parts(1.0, f"of {bps.rank()}")
        parts.kept.agree()
        parts.states |= {"weights": torch.tensor(7.0), "own": f"of {bps.rank()} at 7"}
        before = parts.kept._last
        parts.kept.commit()
        if bps.rank() == 1:  # the others were lost before their answer came
            after = parts.kept._last
            parts.kept._last, parts.kept._begun = before, after
        parts.states |= {"weights": torch.tensor(9.0), "own": "later"}
        parts.kept.agree()
        assert parts.found() == (7.0, f"of {bps.rank()} at 7")

    fork(2, body)


def test_processes_that_commit_different_states_say_so():
    def body():
        parts = Parts(1.0, "x")
        parts.kept.agree()
        if bps.rank() == 1:
            parts.kept._last = None
        with pytest.raises(RunError, match="the processes commit different states"):
            parts.kept.commit()

    fork(2, body)


def test_elastic_run_gives_all_the_models_of_process_0_also_where_nothing_is_lost(tmp_path):
    def body():
        model = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(model.weight, float(bps.rank()))
        state = bps.elastic.TorchState(model, folder=tmp_path, step=bps.rank())
        assert bps.elastic.run(lambda state, more: (model.weight.sum().item(), state.step + more))(state, 5) == (
            0.0,
            bps.rank() + 5,
        )

    fork(2, body)
