"""The files of a finished run, and a check that none is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hpcps.errors import RunError
from hpcps.records.tail import Tail

_LAST_LINES = 65536
_DESCRIPTIONS = ("spec.json", "provenance.json")
_AGAIN = "the run's folder was deleted, moved or changed during the run; run it again"


def inventory(run: Path, processes: Iterable[str]) -> dict[str, int | None]:
    """Return the size in bytes of each file of a finished run, by its path in the run's folder.

    The size of a file that describes the run is None, because a user may add to it.

    Args:
        run: the folder.
        processes: the processes of the run, such as `worker-3`; the last line of each record lists the saved files.

    Raises:
        RunError: a file is missing, or the last line of a record is not that of a finished process.
    """
    files = [_DESCRIPTIONS[0]]
    for process in processes:
        record = f"records/{process}.jsonl"
        lines = Tail(run / record, _LAST_LINES).read()
        last = lines[-1] if lines else {}
        if lines and (last.get("event"), last.get("reason")) != ("end", "finished"):
            raise RunError(f"{run / record} does not state that {process} has finished: {_AGAIN}")
        files += [record, *(f"{name}.npy" for name in last.get("checksums") or ())]
    sizes = {name: _size(run / name) for name in files}
    if lost := [name for name, size in sizes.items() if not size]:
        raise RunError(f"{enumerated(lost)} missing in {run}: {_AGAIN}")
    described = {name: None for name in _DESCRIPTIONS if _size(run / name)}
    return {**sizes, **described}


def missing(run: Path, done: object) -> tuple[str, ...]:
    """Return what is not there of the files of a finished run, or is of another size.

    Args:
        run: the folder.
        done: what `DONE` holds, with what `inventory` returned as its `files`; a version that did not keep that left
            them out.
    """
    files = done.get("files", {}) if isinstance(done, Mapping) else None
    if not isinstance(files, Mapping):
        return ("a readable DONE",)
    if not files:
        found = {"spec.json": (run / "spec.json").exists(), "records": any((run / "records").glob("*-*.jsonl"))}
        return tuple(name for name, there in found.items() if not there)
    there = {name: _size(run / name) for name in files}
    return tuple(name for name, size in files.items() if there[name] is None or size not in (None, there[name]))


def enumerated(names: Sequence[str], most: int = 3) -> str:
    """Format a list of names, such as `a, b, c and 4 more`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _size(file: Path) -> int | None:
    with suppress(OSError, ValueError):  # a path with a null byte
        return file.stat().st_size
    return None
