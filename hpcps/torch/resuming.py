"""TorchState: what a script commits while it trains, and finds again when it is started again."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcps.errors import RunError, SpecError
from hpcps.session.commits import FOLDER, Commits
from hpcps.session.current import rank, session, size
from hpcps.torch.collectives import allgather_object, barrier

_OWN = ("commit", "restored")
_PLAIN = (bool, int, float, str, type(None), torch.Tensor)


class TorchState:
    """The state of a script: models, optimizers and values such as its step, which are its attributes.

        state = TorchState(model=model, optimizer=optimizer, step=0)
        while state.step < 1000:
            ...
            state.step += 1
            state.commit()

    When the processes are started again, as by `hpcps launch --retry`, it gives models and optimizers what they had at
    the last commit of all processes, and so it does with the values and with the random numbers of torch, random and
    numpy. So what came after it is done again.

    Attributes:
        restored: whether there was a commit.
    """

    restored: bool

    def __init__(self, folder: str | Path | None = None, **parts: Any) -> None:
        """Take the parts, and what the last commit has of them, in all processes at the same time; after `init`.

        Args:
            folder: a folder that all processes can read; by default, one of the run of `hpcps launch`, which removes
                it when the script has ended. In a folder of the script the last commit stays.
            **parts: models, optimizers, schedulers and whatever else has `state_dict` and `load_state_dict`; and
                values: numbers, texts, tensors, and lists, tuples and dictionaries of these.

        Raises:
            SpecError: there is no folder, or one with the state of other parts or of another number of processes, or a
                part is neither.
            RunError: the files cannot be read, or the processes do not find the same commit.
        """
        if taken := [name for name in parts if name in _OWN or name.startswith("_")]:
            raise SpecError(f"TorchState cannot have a part with the name {taken[0]}: use another one")
        self._objects = {name: part for name, part in parts.items() if hasattr(part, "load_state_dict")}
        self._values = [name for name in parts if name not in self._objects]
        vars(self).update(parts)
        self._checked_values()
        self._checked = False
        self._commits = Commits(self._folder(folder), size())
        self._number = self._commits.newest()
        if len(set(allgather_object(self._number, "state"))) > 1:
            raise RunError(
                f"the processes find different states in {self._commits.folder}: give TorchState a folder= that all of "
                "them can read, and only processes of this script write"
            )
        self.restored = self._number > 0
        if self.restored:
            self._restore()

    def commit(self) -> None:
        """Write the state of this process; returns when all processes have written theirs.

        Raises:
            RunError: it cannot be written.
            SpecError: a value, or the state of an object, is none of those that can be kept.
        """
        objects = {name: part.state_dict() for name, part in self._objects.items()}
        if not self._checked:
            _check_readable(objects)
            self._checked = True
        content = {
            "objects": objects,
            "values": self._checked_values(),
            "random": _random_states(),
        }
        buffer, record = io.BytesIO(), session().record
        torch.save(content, buffer)
        self._number += 1
        recorded = {} if record is None else record.committed()
        self._commits.write(rank(), self._number, buffer.getbuffer(), recorded)
        barrier()
        self._commits.keep(rank(), self._number)

    def _checked_values(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self._values}
        for name, value in values.items():
            if not _is_plain(value):
                raise SpecError(
                    f"TorchState cannot keep {name}, which is of type {type(value).__name__}: give what has "
                    "state_dict() and load_state_dict(), or numbers, texts, tensors, and lists, tuples and "
                    "dictionaries of these"
                )
        return values

    @staticmethod
    def _folder(folder: str | Path | None) -> Path:
        if folder is not None:
            return Path(folder)
        if (run := session().folder) is None:
            raise SpecError(
                "TorchState has no folder: start the script with `hpcps launch`, or give folder=, which all processes "
                "can read"
            )
        return run / FOLDER

    def _restore(self) -> None:
        file = self._commits.file(rank(), self._number)
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
            objects, values = dict(found["objects"]), dict(found["values"])
        except Exception as error:
            raise RunError(f"the state {file} is damaged: remove its folder to begin again") from error
        if {*objects, *values} != {*self._objects, *self._values}:
            there, mine = (", ".join(sorted(names)) for names in ({*objects, *values}, {*self._objects, *self._values}))
            raise SpecError(
                f"{self._commits.folder} has the state of {there}, and this one has {mine}: give the same parts, or "
                "remove the folder to begin again"
            )
        for name, part in self._objects.items():
            part.load_state_dict(objects[name])
        vars(self).update(values)
        _restore_random(found["random"])


def _check_readable(objects: dict[str, Any]) -> None:
    """Check that torch can read states back without executing code that is in a file.

    Raises:
        SpecError: it cannot read one.
    """
    for name, state in objects.items():
        buffer = io.BytesIO()
        try:
            torch.save(state, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception as error:
            raise SpecError(
                f"TorchState cannot keep {name}: its state_dict() has objects that torch.load(weights_only=True) does "
                "not read back: give tensors, numbers, texts, lists and dictionaries"
            ) from error


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.keys())) and all(map(_is_plain, value.values()))
    return isinstance(value, _PLAIN)


def _random_states() -> dict[str, Any]:
    """Return the states of the generators that scripts use, as tensors, numbers and texts."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "random": random.getstate(),
        "numpy": (
            kind,
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["random"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
