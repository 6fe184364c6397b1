"""A script suspends its exchanges, and resumes them with as many processes or with other numbers."""

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from forked import fork
from launched_scripts import launched

torch = pytest.importorskip("torch")

import hpcps.numpy as arrays  # noqa: E402
import hpcps.torch as bps  # noqa: E402
import hpcps.torch.horovod as hvd  # noqa: E402
from hpcps.cli.main import main  # noqa: E402
from hpcps.errors import LaunchError, RunError, SpecError  # noqa: E402
from hpcps.launch.generations import Generation, ResizedError  # noqa: E402
from hpcps.launch.hostfile import Host  # noqa: E402
from hpcps.launch.local_rank import OWN_RANK  # noqa: E402
from hpcps.launch.losses import Loss, Losses, Resize  # noqa: E402
from hpcps.launch.placement import place_others  # noqa: E402
from hpcps.launch.plan import Plan, Rank, Script  # noqa: E402
from hpcps.records.files import read_lines  # noqa: E402
from hpcps.records.status import SweepProgress  # noqa: E402
from hpcps.session import pending  # noqa: E402
from hpcps.session.current import session  # noqa: E402
from hpcps.session.join import LaunchedSession  # noqa: E402
from hpcps.torch.kept import KeptCommits  # noqa: E402

pytestmark = pytest.mark.usefixtures("starts_processes")

SCRIPT = """
import atexit, glob, json, os, signal, sys, torch, hpcps.torch as bps
from hpcps.launch.generations import Generation

bps.init()
w = torch.nn.Parameter(torch.full((3,), 8.0 + bps.rank()))
optimizer = bps.DistributedOptimizer(torch.optim.SGD([w], 0.5, momentum=0.5), [("w", w)])
resizes = [tuple(map(int, word.split(":"))) for word in sys.argv[1].split()]
kills = [word.split("@") for word in sys.argv[2:]]

def maybe_die(at):
    "Kill a process, once: this one, or worker 0 kills a server."
    for when, who in kills:
        mine = who == f"worker-{bps.rank()}" or (who[0] == "s" and bps.rank() == 0)
        if mine and when == at and not os.path.exists(f"killed-{at}"):
            open(f"killed-{at}", "w").close()
            pid = os.getpid()
            if who[0] == "s":
                lines = open(glob.glob(f"results/*/runs/*/records/{who}.jsonl")[0]).read().splitlines()
                pid = [json.loads(line)["pid"] for line in lines if '"start"' in line][-1]
            os.kill(pid, signal.SIGKILL)

def resize(self, world, begin=Generation.resize):
    maybe_die("agreed")
    begin(self, world)
    maybe_die("written")

Generation.resize = resize

def refused(call):
    try:
        call()
    except Exception as error:
        print(f"refused: worker-{bps.rank()}: {type(error).__name__}: {error}", flush=True)

@bps.elastic.run
def train(state):
    while state.step < 8:
        for step, workers, servers in resizes:
            if step == state.step and bps.size() != workers:
                state.commit()
                bps.suspend()
                maybe_die("suspended")
                if workers > 90:
                    refused(lambda: bps.resume(workers, servers))
                    workers = servers = None
                bps.resume(workers, servers)
                maybe_die("resumed")
                state.sync()
                maybe_die("synced")
        maybe_die(f"step {state.step}")
        optimizer.zero_grad()
        (w.sum() * (1 + bps.rank()) * (1 + state.step)).backward()
        optimizer.step()
        state.step += 1
        state.sizes.append(bps.size())
        bps.log(epoch=state.step, loss=w.sum())
        if state.step != 6:
            state.commit()

atexit.register(lambda rank: open(f"exits-{rank}", "w").close(), bps.rank())
try:
    state = bps.TorchState(optimizer=optimizer, w=w, step=0, sizes=[])
    train(state)
    with open(f"ends-{bps.rank()}", "w") as file:
        json.dump([w.tolist(), state.sizes, os.environ["WORLD_SIZE"]], file)
finally:
    open(f"finally-{bps.rank()}", "w").close()
"""
SURVIVES = "--transport", "pslite", "--survive"


def ends(folder):
    return {file.name[5:]: json.loads(file.read_text()) for file in sorted(folder.glob("ends-*"))}


def expected(sizes):
    """Return the parameters of a plain computation with so many workers in each step."""
    w = torch.nn.Parameter(torch.full((3,), 8.0))
    optimizer = torch.optim.SGD([w], 0.5, momentum=0.5)
    for step, size in enumerate(sizes):
        w.grad = torch.full((3,), sum((1.0 + rank) * (1 + step) for rank in range(size)) / size)
        optimizer.step()
    return w.tolist()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("resizes", "kills", "sizes", "servers"),
    [
        pytest.param("2:4:2 5:3:1", ["step 6@worker-2"], [2, 2, 4, 4, 4, 3, 3, 3], 1, id="grow, shrink, lose one"),
        pytest.param("1:2:1 3:1:0 5:2:2", [], [1, 2, 2, 1, 1, 2, 2, 2], 2, id="again", marks=pytest.mark.soak),
        pytest.param("2:2:1", ["suspended@worker-2"], [3, 3, *[2] * 6], 1, id="lose while suspended"),
        pytest.param("2:3:1", ["resumed@worker-0"], [2, 2, *[3] * 6], 1, id="lose after", marks=pytest.mark.soak),
        pytest.param("2:3:1", ["synced@worker-1"], [2, 2, *[3] * 6], 1, id="lose in step", marks=pytest.mark.soak),
        pytest.param("2:3:1", ["step 2@worker-2"], [2, 2, *[3] * 6], 1, id="lose a new one", marks=pytest.mark.soak),
        pytest.param("2:3:2", ["agreed@worker-0"], [2, 2, *[3] * 6], 2, id="lose before", marks=pytest.mark.soak),
        pytest.param("2:3:2", ["written@worker-0"], [2, 2, *[3] * 6], 2, id="lose meanwhile", marks=pytest.mark.soak),
        pytest.param("2:3:1", ["suspended@server-0"], [2, 2, *[3] * 6], 1, id="a server", marks=pytest.mark.soak),
        pytest.param("2:1:1", ["written@server-0"], [2, 2, *[1] * 6], 1, id="its server", marks=pytest.mark.soak),
    ],
)
def test_a_script_goes_on_with_other_numbers_of_processes(tmp_path, capsys, resizes, kills, sizes, servers):
    options = (*SURVIVES, "--servers", "1")
    text = launched(tmp_path, SCRIPT, resizes, *kills, processes=sizes[0], options=options)
    assert text.count(" is replaced (") == len(kills)
    found = expected(sizes)
    assert ends(tmp_path) == {str(rank): [found, sizes, str(sizes[-1])] for rank in range(sizes[-1])}
    for kind in ("exits", "finally"):
        assert len(list(tmp_path.glob(f"{kind}-*"))) == max(sizes)
    (run,) = (tmp_path / "results/script/runs").iterdir()
    assert (run / "DONE").exists()
    (status,) = SweepProgress([run]).poll()
    assert status.state == "done"
    assert len(status.lost) == len(kills)
    assert [(line["workers"], line["round"]) for line in status.resized] == [
        (int(word.split(":")[1]), int(word.split(":")[0])) for word in resizes.split()
    ]
    assert status.resized[-1]["servers"] == servers
    assert main(["status", "--results", str(tmp_path / "results")]) == 0
    last, names = status.resized[-1], {count: f"{count} worker{'s' * (count != 1)}" for count in sizes}
    words = f"{names[sizes[-1]]} and {servers} server{'s' * (servers != 1)} since round {last['round']}: "
    assert words in capsys.readouterr().out
    lines, _ = read_lines(run / "records/worker-0.jsonl").valid()
    assert [line["epoch"] for line in lines if line["event"] == "evaluation"] == [1, 2, 3, 4, 5, 6, 7, 8]
    for rank in range(sizes[-1], max(sizes)):
        assert read_lines(run / f"records/worker-{rank}.jsonl").lines[-1]["event"] == "left"


@pytest.mark.thorough
def test_a_script_that_asks_for_more_than_there_are_slots_goes_on_as_before(tmp_path):
    (tmp_path / "hosts").write_text(f"{socket.gethostname()} slots=3\n")
    options = (*SURVIVES, "--servers", "1", "--hostfile", "hosts")
    text = launched(tmp_path, SCRIPT, "2:99:1", processes=2, options=options)
    what = "LaunchError: 99 workers and 1 server need 100 slots, the hosts have 3 on 1 host: 97 are missing"
    assert all(f"refused: worker-{rank}: {what}" in text for rank in range(2))
    assert ends(tmp_path) == {str(rank): [expected([2] * 8), [2] * 8, "2"] for rank in range(2)}


LEAVING = """
import glob, time
from hpcps.launch.losses import Losses

def await_file(pattern):
    while not glob.glob(pattern):
        time.sleep(0.02)

if os.path.exists(began := f"began-{os.environ['RANK']}"):
    open("replaced", "w").close()
    if sys.argv[2] == "replaced":
        await_file("results/*/launch/*/*.losses/resize.1")
open(began, "w").close()

def begin_late(self, resize, add=Losses.resize):
    "Let worker 0 kill the process that would leave, and resize when there is a replacement."
    lines = open(glob.glob("results/*/runs/*/records/worker-2.jsonl")[0]).read().splitlines()
    os.kill(json.loads(lines[0])["pid"], signal.SIGKILL)
    await_file(sys.argv[2])
    add(self, resize)

Losses.resize = begin_late
bps.init()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "when",
    [
        pytest.param("replaced", id="before its replacement joins"),
        pytest.param(
            "results/*/launch/*/*.1.joining/worker-2", id="while its replacement joins", marks=pytest.mark.soak
        ),
    ],
)
def test_a_process_that_is_lost_before_it_leaves_has_no_part_any_more(tmp_path, when):
    script = SCRIPT.replace("bps.init()\n", LEAVING).replace("Generation.resize = resize\n", "")
    script = script.replace("*word.split", "word.split").replace("for word in sys.argv[2:]", "for word in ()")
    text = launched(tmp_path, script, "2:2:1", when, options=(*SURVIVES, "--servers", "1"))
    assert "worker-2 is replaced (1)" in text
    assert "Traceback" not in text
    sizes = [3, 3, *[2] * 6]
    assert ends(tmp_path) == {str(rank): [expected(sizes), sizes, "2"] for rank in range(2)}
    (run,) = (tmp_path / "results/script/runs").iterdir()
    (status,) = SweepProgress([run]).poll()
    assert (status.state, [line["process"] for line in status.lost]) == ("done", ["worker-2"])
    assert [line["workers"] for line in status.resized] == [2]


def test_the_replacement_of_a_process_that_was_to_leave_ends_without_a_word(tmp_path):
    plan = Plan(world("worker-0", "worker-1"), (), mpi=False, script=Script(("python",), "/", 1, survives=True))
    plan.write(tmp_path / "plan")
    Losses(tmp_path / "plan").resize(Resize.of(plan.world, plan.world[:1]))
    command = [sys.executable, "-m", "hpcps.session", str(tmp_path / "plan"), "worker"]
    done = subprocess.run(
        command, env=os.environ | {OWN_RANK: "worker-1"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.thorough
def test_a_script_whose_commits_are_all_lost_says_that_it_begins_at_its_beginning(tmp_path):
    text = launched(tmp_path, SCRIPT, "2:1:1", "step 4@worker-0", processes=2, options=(*SURVIVES, "--servers", "1"))
    assert text.count(": no living process has a commit: the script begins at its beginning\n") == 1
    assert ends(tmp_path) == {"0": [expected([1] * 8), [1] * 8, "1"]}


@pytest.mark.thorough
def test_a_change_is_in_the_record_once_however_often_all_go_back_to_the_last_commit(tmp_path):
    again = "if (bps.size(), state.step) == (2, 2): state.sync(); state.commit(); state.sync()"
    script = SCRIPT.replace('maybe_die(f"step {state.step}")', again)
    launched(tmp_path, script, "2:2:1", processes=1, options=(*SURVIVES, "--servers", "1"))
    (run,) = (tmp_path / "results/script/runs").iterdir()
    lines, _ = read_lines(run / "records/worker-0.jsonl").valid()
    assert [line["workers"] for line in lines if line["event"] == "resized"] == [2]


def test_exchanges_are_refused_until_all_resume():
    def body():
        one, handle = torch.ones(3), bps.push_pull_async(torch.ones(2), average=False)
        w = torch.nn.Parameter(torch.ones(2))
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([w], 1.0), [("w", w)])
        with pytest.raises(SpecError, match=r"resume\(\) without suspend\(\): all processes call suspend\(\) first"):
            bps.resume()
        for numbers in ({}, {"workers": 2}, {"workers": 2, "servers": 0}):
            bps.suspend()
            with pytest.raises(RunError, match=r"has called suspend\(\): it exchanges nothing until all have called"):
                bps.push_pull(one, name="a")
            with pytest.raises(RunError, match=r"it exchanges nothing until"):
                bps.barrier()
            with pytest.raises(SpecError, match=r"suspend\(\) after suspend\(\): call resume\(\) first"):
                bps.suspend()
            bps.resume(**numbers)
            assert bps.push_pull(one * (1 + bps.rank()), name="a").tolist() == [1.5] * 3
        assert bps.synchronize(handle).tolist() == [2.0, 2.0]
        (w.sum() * (1 + bps.rank())).backward()
        optimizer.step()
        assert w.tolist() == [-0.5, -0.5]

    fork(2, body)


def test_a_process_that_a_suspended_one_forks_resumes_nothing():
    def body():
        bps.suspend()
        child = os.fork()
        if not child:
            with pytest.raises(RunError, match="has forked this process, which is not a member of its session"):
                bps.resume()
            with pytest.raises(RunError, match="has forked this process"):
                bps.barrier()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        bps.resume()
        with pytest.raises(SpecError, match=r"resume\(\) without suspend"):
            bps.resume()
        bps.barrier()

    fork(2, body)


@pytest.mark.parametrize(
    "begin",
    [
        lambda: bps.push_pull_async(torch.ones(2)),
        lambda: hvd.grouped_allreduce_async([torch.ones(2)]),
        lambda: hvd.sparse_allreduce_async(torch.ones(2).to_sparse()),
    ],
    ids=["a tensor", "a group", "a sparse tensor"],
)
def test_a_handle_from_before_a_resize_frees_no_name_of_an_exchange_after_it(begin):
    def end(handle):
        return handle() if callable(handle) else bps.synchronize(handle)

    bps.init(alone=True)
    try:
        before = begin()
        session().complete()
        names = set(pending._unnamed)
        pending.forget_names()
        after = begin()
        assert pending._unnamed == names
        end(before)
        assert pending._unnamed == names
        end(after)
        assert not pending._unnamed
    finally:
        bps.shutdown()


def test_numbers_that_cannot_be_had_are_refused_in_all_processes():
    def body():
        bps.suspend()
        for given, words in (
            (
                {"workers": 2 + bps.rank()},
                "ask for different numbers: worker-0 calls resume(workers=2, servers=None), and worker-1 "
                "resume(workers=3, servers=None): all must give the same",
            ),
            (
                {"workers": 0} if bps.rank() else {},
                "worker-1 calls resume(workers=0, servers=None): workers is a whole number from 1 to 65536",
            ),
            (
                {"servers": True},
                "worker-0 calls resume(workers=None, servers='True'): servers is a whole number from 0",
            ),
            (
                {"workers": 3},
                "resume(workers=3, servers=0): these processes cannot become more or fewer, as they are 2 with 0 "
                "servers: start the script with `hpcps launch --transport pslite --survive`, and let elastic.run call",
            ),
        ):
            with pytest.raises(SpecError, match=re.escape(words)):
                bps.resume(**given)
            with pytest.raises(RunError, match=r"has called suspend\(\)"):
                bps.barrier()
        bps.resume()
        bps.barrier()

    fork(2, body)


def test_other_front_ends_say_that_they_cannot_suspend():
    arrays.init(alone=True)
    try:
        for call in (arrays.suspend, lambda: arrays.resume(workers=3)):
            with pytest.raises(SpecError, match=r"hpcps.numpy has no suspend\(\) and resume\(\), which are"):
                call()
    finally:
        arrays.shutdown()


def test_a_step_that_has_begun_is_not_suspended():
    def body():
        w = torch.nn.Parameter(torch.ones(2))
        bps.DistributedOptimizer(torch.optim.SGD([w], 1.0), [("w", w)])
        w.sum().backward()
        with pytest.raises(RunError, match="after a backward pass without its step"):
            bps.suspend()

    bps.init(alone=True)
    try:
        body()
    finally:
        bps.shutdown()


def world(*names):
    ranks = [name.rpartition("-")[::2] for name in names]
    return tuple(Rank(k, role, int(index), "localhost") for k, (role, index) in enumerate(ranks))


def test_each_resize_begins_a_generation_with_its_processes(tmp_path):
    plan = Plan(world("worker-0", "scheduler-0"), (), mpi=False, script=Script(("python",), "/", 1, survives=True))
    file = tmp_path / "plan.json"
    first = Generation(plan, file)
    assert first.plan == plan
    assert not first.is_resized
    larger = first.others(2, 1) if plan.script.hosts else world("worker-0", "worker-1", "server-0", "scheduler-0")
    first.resize(larger)
    assert first.is_resized
    words = r"the script goes on with 2 workers and 1 server: worker-1, server-0 join"
    with pytest.raises(ResizedError, match=words):
        first.check()
    second = Generation(plan, file)
    assert (second.number, second.plan.world, second.is_resized) == (1, larger, False)
    assert second.since(first) == [Resize(larger, ("worker-1", "server-0"))]
    second.resize(plan.world)
    third = Generation(plan, file)
    assert (third.number, third.plan.world) == (2, plan.world)
    assert str(third.since(second)[0]) == "1 worker: worker-1, server-0 leave"


def test_a_resize_counts_once_its_file_can_be_read(tmp_path):
    plan = Plan(world("worker-0"), (), mpi=False, script=Script(("python",), "/", 1, survives=True))
    losses, larger = Losses(tmp_path / "plan"), world("worker-0", "worker-1")
    losses.path.mkdir()
    (losses.path / "resize.1").symlink_to("later")  # a network file system may show its name first
    assert losses.present(plan) == (plan, frozenset())
    losses.lose("worker-0", 0, Loss("worker", 0, "n01", "died"))
    (losses.path / "resize.1").unlink()
    losses.resize(Resize.of(plan.world, larger))
    (losses.path / "resize.2").symlink_to("later")
    assert losses.present(plan) == (replace(plan, world=larger), {"worker-0.0", "resize.1"})
    generation = Generation(plan, tmp_path / "plan")
    assert (generation.number, generation.plan.world) == (2, larger)


def test_a_process_that_has_joined_may_be_lost():
    survives, ends = (
        Plan(world("worker-0"), (), script=Script(("python",), "/", 1, survives=k)) for k in (True, False)
    )
    assert (survives.may_lose("worker-7"), ends.may_lose("worker-0")) == (True, False)


def test_losses_of_processes_of_one_name_are_different_losses(tmp_path):
    losses, loss = Losses(tmp_path / "plan"), Loss("worker", 1, "n01", "died")
    for _ in range(3):
        losses.lose("worker-1", 0, loss)
    assert sorted(losses.names()) == ["worker-1.0", "worker-1.1", "worker-1.2"]


def test_a_loss_before_the_function_is_noticed_in_it():
    """A tensor that is declared in a session that is over is declared again in the next one."""
    first = object.__new__(LaunchedSession)
    first.exchanges, first._lock, first.member = False, MagicMock(), MagicMock()
    first.member.declare.side_effect = RunError("worker-1 is lost")
    first.member.participant.declare.return_value = ("tensor", ["a message"])
    first.is_over = lambda: True
    assert first.declare("declaration") == "tensor"
    first.exchanges = True
    with pytest.raises(RunError, match="worker-1 is lost"):
        first.declare("declaration")
    first.exchanges, first.is_over = False, lambda: False
    with pytest.raises(RunError, match="worker-1 is lost"):
        first.declare("declaration")


def test_a_process_that_a_commit_does_not_have_gets_what_process_0_had():
    def body():
        states, joined = {"w": torch.tensor(float(bps.rank())), "own": bps.rank()}, []
        kept = KeptCommits(lambda: ({"w": states["w"]}, {"own": states["own"]}), states.update, joined.append)
        kept.agree()
        assert kept.is_of_all
        kept._last = replace(kept._last, number=7, own=kept._last.own[:1]) if bps.rank() == 0 else None
        assert kept.agree() == 0
        assert not kept.is_of_all
        assert joined == [{"own": 0}] * bps.rank()
        assert (states["w"].item(), states["own"]) == (0.0, bps.rank())
        kept.commit()
        assert kept.is_of_all

    fork(2, body)


def placed(ranks):
    return {str(rank): (rank.host, rank.gpu) for rank in ranks}


def test_those_that_stay_keep_their_hosts_and_gpus():
    hosts = (Host("a", 3, gpus=("0", "1")), Host("b", 2, slot_gpus=("x", None)))
    before = (
        Rank(0, "worker", 0, "a", "0"), Rank(1, "server", 0, "a", "1"), Rank(2, "scheduler", 0, "a"),
        Rank(3, "worker", 1, "b", "x"),
    )  # fmt: skip
    more = place_others(before, 3, 2, hosts)
    assert [rank.rank for rank in more] == list(range(6))
    assert placed(more) == placed(before) | {"worker-2": ("b", None), "server-1": ("a", "0")}
    assert [rank.host for rank in more] == ["a"] * 4 + ["b"] * 2
    assert placed(place_others(more, 1, 1, hosts)) == {
        "worker-0": ("a", "0"), "server-0": ("a", "1"), "scheduler-0": ("a", None),
    }  # fmt: skip
    with pytest.raises(
        LaunchError, match=r"5 workers and 1 server need 6 slots, the hosts have 5 on 2 hosts: 1 is mis"
    ):
        place_others(before, 5, 1, hosts)
