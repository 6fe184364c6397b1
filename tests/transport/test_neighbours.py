"""Who can reach whose memory, without MPI: two processes that exchange their cards."""

import os
import resource
import shutil
import struct
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest

from hpcps.protocol.envelope import MalformedMessageError
from hpcps.transport.shared_memory import Arena, Neighbours, SegmentAddress
from hpcps.transport.shared_memory.arena import ADDRESS_BYTES
from hpcps.transport.shared_memory.mailbox import Mailbox, MailboxWriter
from hpcps.transport.shared_memory.neighbours import CARD_BYTES

CARD = struct.Struct("<QQQ16s")
"""Process id, file descriptor of the token, of the mailbox, the token."""

OTHER = """
import sys
from hpcps.transport.shared_memory import Neighbours
from hpcps.transport.shared_memory.neighbours import CARD_BYTES
me = Neighbours()
mine = me.arena.allocate(1000)
mine[:] = 7
sys.stdout.buffer.write(me.card() + me.arena.locate(mine).pack())
sys.stdout.flush()
me.reach([sys.stdin.buffer.read(CARD_BYTES)], 1)
sys.stdin.buffer.read(1)
me.send(0, b"")
me.send(0, b"hello " * 20_000)
while not me.flush(0):
    pass
me.send(0, b"bye")
sys.stdin.buffer.read()
"""


@pytest.fixture
def here():
    with closing(Neighbours()) as neighbours:
        yield neighbours


@pytest.fixture
def start():
    """Start another process; return it, its card and the place of a thousand sevens in its memory."""
    processes = []

    def begin(*prefix):
        command = [*prefix, sys.executable, "-c", OTHER]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        processes.append(process)
        said = b""
        while len(said) < CARD_BYTES + ADDRESS_BYTES:
            more = process.stdout.read(CARD_BYTES + ADDRESS_BYTES - len(said))
            assert more, "it died"
            said += more
        return process, said[:CARD_BYTES], SegmentAddress.unpack(said[CARD_BYTES:])

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("starts_processes")
def test_a_process_of_this_host_is_reached_read_and_heard(here, start):
    process, card, place = start()
    assert here.reach([here.card(), card], 0) == [False, True]
    here.keep([False, True])
    view = here.view(1, place)
    np.testing.assert_array_equal(view, np.full(1000, 7, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1

    began = time.monotonic()
    assert not here.wait(0.05)
    assert time.monotonic() - began >= 0.05, "nobody has said anything"
    process.stdin.write(here.card() + b"!")
    heard = []
    while len(heard) < 3:
        assert here.wait(60.0)
        heard += here.receive()
    # Longer than the pipe is large, and still whole.
    assert heard == [(1, b""), (1, b"hello " * 20_000), (1, b"bye")]
    with pytest.raises(MalformedMessageError, match="cannot be read"):
        here.view(1, place._replace(segment=0))


@pytest.mark.parametrize("number", [None, 2000])
def test_a_mailbox_is_waited_at_whatever_its_number(number):
    """A process may have more files open than `select` can tell apart."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0]), most))
    with closing(Mailbox()) as mailbox:
        if number is not None:
            small, mailbox._end = mailbox._end, os.dup2(mailbox._end, number)
            os.close(small)
        assert not mailbox.wait(0.002)
        with closing(MailboxWriter(os.getpid(), mailbox.opening, 3)) as writer:
            writer.put(b"hello")
        assert mailbox.wait(10.0)
        assert mailbox.take() == [(3, b"hello")]


@pytest.mark.usefixtures("starts_processes")
def test_what_a_killed_process_leaves_is_what_others_look_at(here, start):
    """Its memory has no name, and the system takes it back with the last view of it."""
    process, card, place = start()
    named = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    here.reach([here.card(), card], 0)
    view = here.view(1, place)
    inode = os.stat(f"/proc/{process.pid}/fd/{place.segment}").st_ino
    process.kill()
    process.wait()
    assert (view == 7).all(), "a reader does not crash"
    assert inode in mapped()
    del view
    here._mapped.clear()
    assert inode not in mapped()
    new = set(os.listdir("/dev/shm")) - named if named else set()
    assert not [name for name in new if "hpcps" in name]


def mapped() -> set[int]:
    """The inodes of all memory of our kind that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return {int(line.split()[4]) for line in maps if "/memfd:hpcps" in line}


def test_a_process_of_another_host_is_not_reached(here, start):
    """Hosts number their processes alike: what has the number here is somebody else."""
    enter = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
    if shutil.which("unshare") is None or subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here (unshare --user --pid --mount-proc)")
    _, card, _ = start(*enter)
    assert here.reach([here.card(), card], 0) == [False, False]
    assert len(here) == 0


def test_what_is_no_memory_is_not_even_opened(here, tmp_path):
    """Whoever opens a pipe without a writer waits for one; to open a device may do worse."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY)
    os.close(pipe)
    assert here.reach([CARD.pack(os.getpid(), reader, reader, b"?" * 16)], 1) == [False]
    os.close(reader)


def test_memory_that_could_shrink_is_refused(here):
    """A reader would crash where a page is gone."""
    fd = os.memfd_create("hpcps")
    os.ftruncate(fd, 4096)
    assert here.reach([CARD.pack(os.getpid(), fd, fd, b"\0" * 16)], 1) == [False]
    os.close(fd)


def test_without_such_memory_everything_is_sent(monkeypatch):
    """Not Linux, or none is left."""
    monkeypatch.delattr(os, "memfd_create")
    arena = Arena()
    values = arena.allocate(10)
    assert len(values) == 10
    assert arena.locate(values) is None
    with closing(Neighbours()) as here, closing(Neighbours()) as there:
        assert there.reach([here.card()], 1) == [False]


def test_a_place_that_is_cut_off_is_malformed():
    with pytest.raises(MalformedMessageError, match="23 bytes"):
        SegmentAddress.unpack(b"\0" * 23)
