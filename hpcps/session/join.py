"""How a process joins the session of its launch."""

from __future__ import annotations

import atexit
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any

from hpcps.errors import HpcpsError, LaunchError, RunError, SpecError, message_of
from hpcps.execution.bootstrap import process_group, start_limit
from hpcps.inputs import whole_number
from hpcps.launch.ancestry import Task
from hpcps.launch.arrivals import Arrivals, EndedError
from hpcps.launch.generations import Generation
from hpcps.launch.guard import LostGuards, mpi_start, tie_to_parent
from hpcps.launch.local_rank import OWN_RANK, PLAN, gpu_of, planned_rank, variables_of_worker
from hpcps.launch.losses import Loss, Resize
from hpcps.launch.plan import Plan, Rank
from hpcps.protocol.messages import Peer
from hpcps.records.run_directory import PLUGINS, RunDirectory
from hpcps.records.trace.clocks import Clocks
from hpcps.records.trace.tracer import Tracer
from hpcps.records.writer import RecordWriter
from hpcps.registry.components import extend
from hpcps.registry.plugins import registry_of
from hpcps.session.buckets import PARTITION
from hpcps.session.member import FAILED, TIMEOUT
from hpcps.session.participant import Copies
from hpcps.session.record import ScriptRecord
from hpcps.session.session import EXCHANGES, Session, report
from hpcps.session.sharding import Sharding
from hpcps.session.tensors import Declaration, Tensor, TensorExchange, script_line
from hpcps.session.trace import SessionTrace
from hpcps.spec.tree import get
from hpcps.transport import ProcessGroup
from hpcps.transport.mpi.component import load_mpi
from hpcps.transport.process_group import LostError, refuse
from hpcps.transport.shared_memory.process_group import SharedMemoryProcessGroup

INDEPENDENT = "if the processes are independent of each other, use init(alone=True)"
"""What to do where processes do not belong together, for messages."""
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
"""What `sys.excepthook` is."""


class StepSession(Session):
    """The session of the processes that one launcher has started: they leave their process group together."""

    def shutdown(self, error: str = "") -> None:
        """End the session; without an error, leave the process group together with all others."""
        super().shutdown(error)
        if error:
            self._group.abandon()
        else:
            with self._limit():
                self._group.barrier()
                self._group.leave()

    def _limit(self) -> AbstractContextManager[None]:
        """Limit how long all processes, which have ended their parts, take to leave their process group."""
        return nullcontext()  # the supervisor of `hpcps launch` does


class TaskSession(StepSession):
    """The session of a task of an MPI launcher. Only MPI connects the tasks, and nobody else looks after them."""

    def __init__(self, group: ProcessGroup, world: list[Peer], timeout: float, copies: Copies | None) -> None:
        """Create a session; see `Session`. `timeout` also limits how long the end of MPI waits for the others."""
        super().__init__(group, world, timeout, copies)
        self._timeout, self._left, self._process = timeout, False, os.getpid()
        # Python calls it before the function of the process group, which ends MPI.
        atexit.register(self._limit_end)

    def shutdown(self, error: str = "") -> None:
        """End the session; without an error, leave the process group together with all others."""
        super().shutdown(error)
        self._left = not error

    def _limit(self) -> AbstractContextManager[None]:
        late = (
            f"{self.name} has waited {self._timeout:g} s for the others to leave MPI: "
            "this process or another one is stopped or hangs"
        )
        return _ended_after(self._timeout, late)

    def _limit_end(self) -> None:
        """Limit how long the end of MPI, in one call, waits for the others."""
        if self._left and self._process == os.getpid():
            self._end = self._limit()  # until this process ends
            self._end.__enter__()


class LaunchedSession(StepSession):
    """The session of a process of `hpcps launch`.

    Attributes:
        generation: the generation of the processes of this session.
        exchanges: whether the script may exchange tensors. If it survives the loss of a process, it may do so only
            where all repeat what they have done, because a replacement does it too.
        changes: the losses and resizes since the last commit of an earlier session.
        has_committed: whether the script has committed its state in this session.
    """

    generation: Generation
    exchanges = True
    changes: Sequence[Loss | Resize] = ()
    has_committed = False
    _again: Callable[[], LaunchedSession]
    _stack: ExitStack

    def start(self, *args: Any, **kwargs: Any) -> TensorExchange:
        """Begin an exchange; see `Session.start`.

        Raises:
            SpecError: this is not the place for it in a script that survives the loss of a process.
        """
        if not self.exchanges:
            raise SpecError(
                "a script of `hpcps launch --survive` exchanges tensors in the function that it gives to "
                "hpcps.torch.elastic.run, and nowhere else: a replacement of a lost process does what comes before it "
                "alone, and no process waits for what comes after it; run gives all processes the models and "
                "optimizers of process 0, so broadcasts of them can be left out"
            )
        return super().start(*args, **kwargs)

    def declare(self, declaration: Declaration) -> Tensor:
        """Declare a tensor; see `Session.declare`.

        In a script that survives the loss of a process, what comes before the function that it repeats does not notice
        one: the function does, and then all declare their tensors in another session.
        """
        try:
            return super().declare(declaration)
        except RunError:
            if self.exchanges or not self.is_over():
                raise
        with self._lock:
            assert self.member.participant is not None, "servers run no script"
            return self.member.participant.declare(declaration)[0]

    def is_over(self) -> bool:
        """Return whether the session cannot go on because a process is lost, or all are resized, and join anew."""
        failed = any(why.startswith(FAILED) for why in self.member.gone.values())
        return self.member.error is not None and self.generation.is_over(wait=not failed)

    def again(self) -> LaunchedSession | None:
        """End this session without a word, and return that of the next generation; its record goes on.

        None: the script goes on without this process.
        """
        self._closing = True
        self._resume.set()
        self._thread.join(timeout=5.0)
        atexit.unregister(self.close)
        self._stack.close()
        try:
            session = self._again()
        except _NotAMemberError:
            self._leave()
            return None
        session.limit(self.member.outbox.credit)
        session.exchanges = self.exchanges  # a script may resume in the function that it repeats
        before = () if self.has_committed else self.changes  # the record goes back to the last commit
        session.changes = [*before, *session.generation.since(self.generation)]
        return session

    def resize(self, world: Sequence[Rank]) -> None:
        """Begin the generation of other processes, and let all join it; else the session ends with an error.

        If the session has an error already, as after a loss, the numbers stay.
        """
        if self.member.error is not None:
            return
        try:
            self.generation.resize(world)
            error = RunError("the script is resized")
        except OSError as cause:
            error = RunError(f"{self.name} cannot begin with other processes: {cause.filename}: {cause.strerror}")
        self.fail(error)

    def _leave(self) -> None:
        """Have no part in the script any more, without which the others go on."""
        me = self.member.peer
        refuse(self, EXCHANGES, f"{me} has left the script, which goes on without it")
        if self.record is not None:
            self.record.leave()
            self.record = None

    def connect(self, stack: ExitStack, again: Callable[[], LaunchedSession]) -> None:
        """Keep what to close at the end of this process, and what joins the next generation."""
        self._stack, self._again, self._owner = stack, again, os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Leave the process group at the end of this process, but not at that of a process that it has forked."""
        if self._owner == os.getpid():
            self._stack.close()

    def shutdown(self, error: str = "") -> None:
        """End the session; without an error, leave the process group together with all others."""
        if not error:
            self.generation.note_over()
        super().shutdown(error)
        if not error:
            Arrivals(Path(os.environ[PLAN])).leave(str(self.member.peer))


class _NotAMemberError(Exception):
    """This process does not belong to a generation."""


def join_in_memory(
    mine: int,
    count: int,
    allgather: Callable[[bytes], list[bytes]],
    timeout: float,
    copies: Copies,
    elsewhere: str = "",
) -> Session:
    """Join processes of this host through shared memory.

    Args:
        mine: the number of this process.
        count: the number of processes.
        allgather: returns what all processes give, in their order.
        timeout: seconds in which an exchange must end.
        copies: copies tensors.
        elsewhere: what to do if processes are on other hosts, for the message.
    """
    world = [Peer("worker", k) for k in range(count)]
    group = SharedMemoryProcessGroup(mine, {peer: k for k, peer in enumerate(world)}, allgather, elsewhere)
    session = Session(group, world, timeout, copies)
    session.begin()
    return session


def join_nobody(timeout: float, copies: Copies) -> Session:
    """Return the session of a process that is alone; see `join_in_memory`."""
    return join_in_memory(0, 1, lambda mine: [mine], timeout, copies)


def connect_to_end(plan: Plan, plan_file: Path, started: Callable[[], None]) -> None:
    """Connect the others until they leave: the further role of a transport, which has no session."""
    with _reporting(plan):
        while not _connect(plan, plan_file, started):
            started = _nothing  # a process was lost, or all are resized, and join each other anew


def _nothing() -> None:
    """Do nothing: the guard of this process knows already that it has started."""


def _connect(plan: Plan, plan_file: Path, started: Callable[[], None]) -> bool:
    """Connect the others of a generation; return whether they have left, else they join each other anew."""
    generation: Generation | None = None
    try:
        with _joined(plan, plan_file, math.inf) as (group, generation):
            started()
            # The collective operations of the others: `join_launch`, `Session` and `LaunchedSession.shutdown`.
            me = generation.plan.world[group.rank]
            if plan.trace:
                Clocks(group, Peer(me.role, 0)).compare()
            group.collect("")
            group.barrier()
            group.leave()
            Arrivals(plan_file).leave(str(me))
            return True
    except RunError:
        if generation is None or not generation.is_over(wait=True):
            raise
        return False


@contextmanager
def _joined(plan: Plan, plan_file: Path, timeout: float) -> Iterator[tuple[ProcessGroup, Generation]]:
    """Wait for all processes of the script and join their process group, each at most `timeout` seconds.

    If a process of a script that survives is lost meanwhile, this joins the next generation.

    Raises:
        _NotAMemberError: this process does not belong to it.
    """
    with ExitStack() as stack:
        while True:
            generation = Generation(plan, plan_file)
            try:
                group = stack.enter_context(_joined_in(generation, plan_file, timeout))
                break
            except (LaunchError, RunError) as error:
                if isinstance(error, EndedError) or not generation.is_over(wait=isinstance(error, RunError)):
                    raise
        yield group, generation


@contextmanager
def _joined_in(generation: Generation, plan_file: Path, timeout: float) -> Iterator[ProcessGroup]:
    plan = generation.plan
    me = planned_rank(plan)
    if me is None and generation.survives:
        Arrivals(plan_file).leave(os.environ[OWN_RANK])  # its guard looks there
        raise _NotAMemberError
    if me is not None:
        over_mpi = get(dict(plan.runs[0].spec), ("run", "transport", "kind")) == "mpi"

        def tell(missing: str) -> None:
            shared = (
                "; the servers belong to MPI.COMM_WORLD: a script that uses MPI itself must not call collective "
                "operations of it, and must call init() before it ends"
            )
            report(f"{me} on {socket.gethostname()}", f"waits for {missing} to call init(){shared * over_mpi}")

        first = me.role == "server" and me.index == 0  # servers have no time limit
        arrive = partial(
            Arrivals(generation.file).arrive,
            str(me),
            [str(rank) for rank in plan.world],
            timeout,
            tell if first else None,
            generation.check,
        )
        if me.role == "server" and over_mpi:
            limit = start_limit(plan.timeout)
            with mpi_start(LostGuards(plan_file).file(str(me)), limit, begin=False), _watching(plan, arrive, limit):
                load_mpi()
        if generation.number:  # the guard of this process looks there
            Arrivals(plan_file).note(str(me))
        arrive()
    with process_group(plan, plan_file, None if math.isinf(timeout) else timeout, generation) as group:
        yield group


@contextmanager
def _watching(plan: Plan, arrive: Callable[[], None], limit: float) -> Iterator[None]:
    """End this process if a script ends without joining the others in this context, in which MPI starts.

    A script may start MPI before it calls `init`, and MPI then waits for the servers: they start MPI at once. Nothing
    can run in a process meanwhile, so a forked one waits for the others.

    Args:
        plan: the plan of the launch.
        arrive: waits until all processes have arrived, see `Arrivals.arrive`.
        limit: the seconds in which MPI must then connect them.
    """
    me = os.getpid()
    watcher = os.fork()
    if not watcher:
        tie_to_parent(signal.SIGKILL)
        try:
            with _reporting(plan):
                arrive()
            time.sleep(limit)
            os.kill(me, signal.SIGALRM)
        except LaunchError as error:
            sys.stderr.write(f"hpcps: {socket.gethostname()}: {error}\n")
            sys.stderr.flush()
            os.kill(me, signal.SIGTERM)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(watcher, signal.SIGKILL)
        os.waitpid(watcher, 0)


@contextmanager
def _reporting(plan: Plan) -> Iterator[None]:
    """Write a report if this process cannot join the others."""
    try:
        yield
    except (LaunchError, LostError) as error:
        present = Generation(plan, Path(os.environ[PLAN])).plan
        if (me := planned_rank(present)) is not None:
            _report_absence(present, me, error)
        raise


def report_loss(run: RunDirectory, error: BaseException | None) -> None:
    """Write the report of a process whose loss has caused an error."""
    if isinstance(error, LostError):
        run.fail(error.peer.role, error.peer.index, error.host, None, "script", error.why)


def _report_absence(plan: Plan, me: Rank, error: LaunchError | LostError) -> None:
    """Write the reports that `hpcps launch` reads: of the process that did not join or is lost, and of this one."""
    run = RunDirectory(Path(plan.runs[0].directory))
    with suppress(OSError):
        report_loss(run, error)
        known = [f"{failure.role}-{failure.index}" for failure in run.failures]
        for rank in plan.world:
            if isinstance(error, EndedError) and str(rank) == error.process not in known:
                host = socket.gethostname() if rank.host == "localhost" else rank.host
                run.fail(rank.role, rank.index, host, None, "script", error.end, at=error.time)
        run.fail(me.role, me.index, socket.gethostname(), None, "script", error)


def print_error(
    before: Hook, who: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an exception that ends the script: one of hpcps without its traceback, because its message says all."""
    if isinstance(error, HpcpsError):
        # They begin in another process, or in a line of the script.
        line = script_line(reversed([*walk_tb(trace)]))
        report(who, f"{line}: {message_of(error)}" if line else message_of(error))
    else:
        before(kind, error, trace)


@contextmanager
def messages() -> Iterator[None]:
    """Let an error of hpcps in this context, if it ends the script, be printed without its traceback."""
    try:
        yield
    except HpcpsError:
        sys.excepthook = partial(print_error, sys.excepthook, socket.gethostname())
        raise


@messages()
def join_launch(
    timeout: float = TIMEOUT, copies: Copies | None = None, join_timeout: float | None = None
) -> LaunchedSession:
    """Join the session of the `hpcps launch` that started this process.

    Args:
        timeout: see `Session`.
        copies: see `Session`.
        join_timeout: seconds in which the other processes must join; by default, as many as `timeout`.

    Raises:
        LaunchError: the plan cannot be read, there is no MPI library, or a process does not join.
        SystemExit: the script goes on without this process, which replaces a lost one that was to leave.
    """
    plan_file = Path(os.environ[PLAN])
    plan = Plan.read(plan_file)
    with _reporting(plan):
        if plan.runs[0].plugins:
            extend(registry_of(plan.runs[0].plugins, Path(plan.runs[0].directory) / PLUGINS).plugins)
        try:
            return _join(plan, plan_file, timeout, copies, timeout if join_timeout is None else join_timeout, None)
        except _NotAMemberError:
            raise SystemExit(0) from None


def _join(
    plan: Plan,
    plan_file: Path,
    timeout: float,
    copies: Copies | None,
    join_timeout: float,
    record: ScriptRecord | None,
) -> LaunchedSession:
    """Join the session of a launch; a record goes on in it, which the session of an earlier generation had."""
    run = plan.runs[0]
    while True:
        stack = ExitStack()
        group, generation = stack.enter_context(_joined(plan, plan_file, join_timeout))
        world = [Peer(rank.role, rank.index) for rank in generation.plan.world]
        shares = plan.script.shares if plan.script is not None else ()
        sharding = Sharding(dict(zip(world, shares, strict=True))) if shares else None
        me, folder = world[group.rank], Path(run.directory)
        try:
            clocks = Clocks(group, me) if plan.trace else None
            offset = clocks.compare() if clocks else None
            session = LaunchedSession(group, world, timeout, copies, sharding)
            break
        except BaseException as error:
            stack.close()
            if not (isinstance(error, RunError) and generation.is_over(wait=True)):
                raise
    session.generation, session.folder = generation, folder
    session.exchanges = me.role != "worker" or not generation.survives
    if generation.survives:
        session.partition = PARTITION  # gradients are grouped alike before and after a resize
        if me.role == "worker":
            os.environ |= variables_of_worker(generation.plan, generation.plan.world[group.rank])

    def again() -> LaunchedSession:
        with _reporting(plan):
            return _join(plan, plan_file, timeout, copies, join_timeout, session.record)

    session.connect(stack, again)
    if record is not None:
        record.follow(session.member)
        session.record = record
        session.begin()
        return session
    writer = RecordWriter(folder, run.run_id, me.role, me.index, session.host)
    facts = {
        "rank": group.rank,
        "transport": run.spec["run"]["transport"]["kind"],
        "gpu": gpu_of(generation.plan.world[group.rank], os.environ),
    }
    neighbours = [str(peer) for peer in group.in_memory()]
    session.record = ScriptRecord(writer, session.member, **facts, shared_memory=neighbours)
    if clocks is not None and offset is not None:
        tracer = Tracer(folder, run.run_id, me, session.host, clocks.session)
        tracer.compare(offset)
        activity = "train" if me.role == "worker" else "wait"
        session.member.trace = SessionTrace(tracer, folder / "trace" / str(me) / "comm.json", activity)
    session.begin()
    return session


_WATCH = """
import os, select, signal, sys
if not select.select([0], [], [], float(sys.argv[2]))[0]:
    sys.stderr.write(sys.argv[3])
    sys.stderr.flush()
    os.kill(int(sys.argv[1]), signal.SIGKILL)
"""


@contextmanager
def _ended_after(timeout: float, message: str) -> Iterator[None]:
    """End this process with a message if the context takes longer: MPI starts without a time limit, in one call."""
    words = [str(os.getpid()), str(timeout), f"hpcps: {socket.gethostname()}: {message}\n"]
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", _WATCH, *words], stdin=subprocess.PIPE):
        yield  # the end of the context closes its standard input, which ends it


def _reaches_launcher() -> bool:
    """Tell whether the descriptor is open through which MPICH and Intel MPI speak with their launcher."""
    number = whole_number(os.environ.get("PMI_FD", ""), 0, 1 << 20)
    if number is not None:
        try:
            os.fstat(number)
        except OSError:
            return False
    return True


@messages()
def join_task(task: Task, timeout: float = TIMEOUT, copies: Copies | None = None) -> StepSession:
    """Join the other tasks of a step of an MPI launcher, such as `mpirun`, through MPI.

    Args:
        task: the task that this process is.
        timeout: see `Session`; also the seconds in which the other tasks must join.
        copies: see `Session`.

    Raises:
        LaunchError: there is no MPI library, it does not belong to the launcher, or the launcher cannot be reached.
    """
    if not _reaches_launcher():
        raise LaunchError(
            f"this process is {task}, but its connection to the launcher (PMI_FD) is closed: the program that has "
            "started it has not passed it on, as subprocess without close_fds=False; let the launcher start this "
            f"process itself, or pass it on to one process of each task; {INDEPENDENT}"
        )
    late = f"{task} has waited {timeout:g} s for the others to call init()"
    with _ended_after(timeout, late):
        MPI = load_mpi()
        from hpcps.transport.mpi.process_group import MpiProcessGroup

        size = MPI.COMM_WORLD.Get_size()
        if size != (task.size or size):
            library = MPI.Get_library_version().split("\n")[0].split(",")[0].strip()
            raise LaunchError(
                f"this process is {task}, and MPI ({library}) has started {size}: start the script "
                "with the mpirun of this MPI, with `hpcps launch`, or under Slurm with another srun --mpi; "
                f"{INDEPENDENT}"
            )
        world = [Peer("worker", k) for k in range(size)]
        # The script may send messages of its own among all processes.
        group = MpiProcessGroup(MPI.COMM_WORLD.Dup(), {peer: rank for rank, peer in enumerate(world)})
        session = TaskSession(group, world, timeout, copies)
    session.begin()
    return session
