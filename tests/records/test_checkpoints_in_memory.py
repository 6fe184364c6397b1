"""Checkpoints in `/dev/shm`: when they are there, what is on disk as well, and what is left when the memory is gone."""

import errno
import json
import os
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from hpcps.errors import RunError
from hpcps.numerics.state import State
from hpcps.records import checkpoint, memory
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.files import Prefix, write_whole
from hpcps.records.run_directory import RunDirectory

PROCESSES = frozenset({"server-0", "worker-0"})


@pytest.fixture
def shm(tmp_path, monkeypatch):
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(memory, "FOLDER", folder)
    return folder


@pytest.fixture
def checkpoints(tmp_path, shm):
    directory = RunDirectory(tmp_path / "results" / "runs" / "0123456789")
    (directory.path / "records").mkdir(parents=True)
    directory.checkpoints.use_memory(1e9)
    return directory.checkpoints


def part(position, size=8):
    return CheckpointPart(State({"values": np.full(size, position, np.float32)}), Prefix(0), 0.0)


def write(checkpoints, position, *, size=8, lasting=False, keep=2):
    checksums = {name: checkpoints.write(position, name, part(position, size)) for name in sorted(PROCESSES)}
    checkpoints.seal(position, "0123456789", checksums, keep, lasting=lasting)


def usable(checkpoints):
    """Return the positions of the checkpoints from which a run can resume; what they contain is right."""
    for position in (found := checkpoints.positions()):
        checkpoints.check(position, "0123456789", PROCESSES)
        for process in PROCESSES:
            assert (checkpoints.read(position, process).state.arrays["values"] == position).all()
    return found


def on_disk(checkpoints):
    return sorted(int(path.parent.name) for path in checkpoints.path.glob("*/manifest.json"))


def files(shm):
    return sorted(path.name for path in shm.rglob("*.npz"))


def test_the_first_is_on_disk_and_the_next_ones_in_memory(checkpoints, shm):
    write(checkpoints, 1)
    assert files(shm) == []
    write(checkpoints, 2)
    assert files(shm) == ["server-0.npz", "worker-0.npz"]
    assert [path.name for path in (checkpoints.path / "000000002").iterdir()] == ["memory"]
    assert (usable(checkpoints), on_disk(checkpoints)) == ([2, 1], [1])
    assert (checkpoints.in_memory(2), checkpoints.in_memory(1)) == (True, False)
    (own,) = shm.iterdir()
    assert own.stat().st_mode & 0o777 == 0o700


def test_one_that_must_last_is_on_disk(checkpoints, shm):
    for position in (1, 2):
        write(checkpoints, position, lasting=True)
        assert files(shm) == []
    assert (usable(checkpoints), on_disk(checkpoints)) == ([2, 1], [1, 2])


def test_once_a_minute_one_is_written_to_the_disk(checkpoints):
    write(checkpoints, 1)
    manifest = checkpoints.path / "000000001" / "manifest.json"
    text = manifest.read_text()
    for seconds, position, there in ((50, 2, [1]), (61, 3, [3]), (0, 4, [3])):
        if manifest.exists():
            content = json.loads(text)
            before = datetime.fromisoformat(content["written"]) - timedelta(seconds=seconds)
            manifest.write_text(json.dumps({**content, "written": before.isoformat()}))
        write(checkpoints, position)
        assert on_disk(checkpoints) == there


def test_the_last_one_on_disk_is_kept_whatever_comes_after_it(checkpoints, shm):
    for position in range(1, 7):
        write(checkpoints, position)
    assert (usable(checkpoints), on_disk(checkpoints)) == ([6, 5, 1], [1])
    assert len(files(shm)) == 4
    write(checkpoints, 7, lasting=True)
    assert (usable(checkpoints), on_disk(checkpoints)) == ([7, 6], [7])


@pytest.mark.parametrize("gone", ["reboot", "link", "owner", "mode"])
def test_without_the_memory_the_last_one_on_disk_counts(gone, checkpoints, shm):
    for position in (1, 2, 3):
        write(checkpoints, position)
    (own,) = shm.iterdir()
    if gone == "reboot":
        shutil.rmtree(own)
    elif gone == "link":
        for link in checkpoints.path.glob("*/memory"):
            own.rename(shm / "other") if own.exists() else None
            target = shm / "other" / Path(os.readlink(link)).name
            link.unlink()
            link.symlink_to(target)
    elif gone == "owner":
        if os.geteuid():
            pytest.skip("only root can give a folder to another user")
        os.chown(own, 54_321, -1)
    else:
        own.chmod(0o777)
    assert usable(checkpoints) == [1]
    checkpoints.forget_after(1)
    assert [path.name for path in checkpoints.path.iterdir()] == ["000000001"]
    write(checkpoints, 2)
    assert usable(checkpoints)[0] == 2


def test_what_does_not_fit_is_on_disk(checkpoints, shm):
    checkpoints.use_memory(30_000)
    write(checkpoints, 1)
    write(checkpoints, 2, size=5_000)  # the second part of 20 kB finds no room
    assert files(shm) == ["server-0.npz"]
    assert (usable(checkpoints), on_disk(checkpoints)) == ([2, 1], [1])
    write(checkpoints, 3, size=50_000)
    assert files(shm) == ["server-0.npz"]
    assert usable(checkpoints) == [3, 2, 1]
    checkpoints.leave_memory()
    assert (usable(checkpoints), on_disk(checkpoints)) == ([3, 1], [1, 3])


def test_half_of_the_space_stays_free(checkpoints, shm, monkeypatch):
    write(checkpoints, 1)
    space = os.statvfs(shm)
    for position, free, there in ((2, 0.49, 0), (3, 0.6, 2)):
        blocks = [*space[:2], 1_000_000, 1_000_000, int(1_000_000 * free), *space[5:10]]
        monkeypatch.setattr(os, "statvfs", lambda path, blocks=blocks: os.statvfs_result(blocks))
        write(checkpoints, position)
        assert len(files(shm)) == there
        assert usable(checkpoints) == [position, position - 1]


@pytest.mark.parametrize(("file", "left"), [("worker-0.npz", ["server-0.npz"]), ("manifest.json", [])])
def test_a_memory_that_is_full_after_all_does_no_harm(file, left, checkpoints, shm, monkeypatch):
    write(checkpoints, 1)

    def full(path, *content):
        if path.is_relative_to(shm) and path.name == file:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_whole(path, *content)

    monkeypatch.setattr(checkpoint, "write_whole", full)
    write(checkpoints, 2)
    assert (usable(checkpoints), files(shm)) == ([2, 1], left)


def test_parts_that_are_removed_before_the_last_one_is_written(checkpoints, shm):
    """systemd does so when the user logs out."""
    write(checkpoints, 1)
    checksums = {name: checkpoints.write(2, name, part(2)) for name in PROCESSES}
    shutil.rmtree(next(shm.iterdir()))
    checkpoints.seal(2, "0123456789", checksums, 2, lasting=False)
    assert usable(checkpoints) == [1]
    assert [path.name for path in checkpoints.path.iterdir()] == ["000000001"]
    write(checkpoints, 3)
    assert usable(checkpoints)[0] == 3


def test_at_the_end_the_newest_is_moved_to_the_disk(checkpoints, shm):
    for position in (1, 2, 3):
        write(checkpoints, position)
    checkpoints.write(4, "worker-0", part(4))  # its process was killed then
    checkpoints.leave_memory()
    assert list(shm.iterdir()) == []
    assert (usable(checkpoints), on_disk(checkpoints)) == ([3, 1], [1, 3])
    checkpoints.leave_memory()
    write(checkpoints, 5)
    assert (usable(checkpoints), on_disk(checkpoints), list(shm.iterdir())) == ([5, 3], [3, 5], [])


def test_a_full_disk_at_the_end_leaves_the_memory(checkpoints, shm, monkeypatch):
    for position in (1, 2):
        write(checkpoints, position)

    def full(path, *content):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_whole", full)
        with pytest.raises(RunError, match=r"cannot copy the checkpoint at 2 from /dev/shm to .*: No space left"):
            checkpoints.leave_memory()
    assert usable(checkpoints) == [2, 1]
    checkpoints.leave_memory()
    assert (usable(checkpoints), on_disk(checkpoints)) == ([2, 1], [1, 2])


def test_what_no_checkpoint_on_disk_names_is_removed(checkpoints, shm):
    """The run went on from the disk on another host, and is back."""
    for position in (1, 2, 3):
        write(checkpoints, position)
    for path in checkpoints.path.glob("00000000[23]"):
        shutil.rmtree(path)
    write(checkpoints, 2)
    assert len(files(shm)) == 6
    checkpoints.forget_after(2)
    assert len(files(shm)) == 2
    assert usable(checkpoints) == [2, 1]
    checkpoints.clear()
    assert files(shm) == []
    checkpoints.leave_memory()
    assert list(shm.iterdir()) == []


def test_a_part_that_is_written_again_counts(checkpoints, shm):
    """The standby of a server does so, which may find no room where the server did, or room where it did not."""
    write(checkpoints, 1)
    for most in (1e9, 0, 1e9):
        checkpoints.use_memory(most)
        checksums = {name: checkpoints.write(2, name, part(2, 8 + int(most > 0))) for name in PROCESSES}
        assert checkpoints.state(2, "worker-0").arrays["values"].size == 8 + int(most > 0)
    checkpoints.seal(2, "0123456789", checksums, 2, lasting=False)
    assert usable(checkpoints) == [2, 1]
