"""TorchState: what a script commits while it trains, and finds again when it is started again."""

from __future__ import annotations

import io
import random
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from hpcps.errors import RunError, SpecError, message_of
from hpcps.launch.losses import Loss
from hpcps.session.commits import FOLDER, Commits
from hpcps.session.current import rank, session, size
from hpcps.session.join import LaunchedSession
from hpcps.session.session import Session, report
from hpcps.torch.collectives import allgather, broadcast_object
from hpcps.torch.kept import KeptCommits, read, written
from hpcps.torch.state import is_asynchronous

_OWN = ("commit", "folder", "restored", "sync")
_RANDOM, _RECORD = "_random", "_record"
_SHARED = (Tensor, nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
_VALUES = (bool, int, float, str, type(None))
_in_use: WeakKeyDictionary[Session, set[Path]] = WeakKeyDictionary()
"""The folders of the states of each session."""


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

    def __init__(
        self, model: Any = None, optimizer: Any = None, *, folder: str | Path | None = None, **parts: Any
    ) -> None:
        """Take the parts, and what the last commit has of them, in all processes at the same time; after `init`.

        Args:
            model: a part with the name `model`.
            optimizer: a part with the name `optimizer`.
            folder: a folder that all processes can read and write; by default, one of the run of `hpcps launch`, which
                removes it when the script has ended. In a folder of the script the last commit stays.
            **parts: all else that has `state_dict` and `load_state_dict`, such as schedulers; generators of torch; and
                values: tensors, numbers, texts, and lists, tuples and dictionaries of these. A tensor is overwritten,
                and other values are new ones.

        Raises:
            SpecError: there is no folder, or one of another TorchState, with other parts or of another number of
                processes; or a part is none of the above.
            RunError: the files cannot be read, or the processes do not find the same commit.
        """
        parts |= {name: part for name, part in (("model", model), ("optimizer", optimizer)) if part is not None}
        if is_asynchronous():
            raise SpecError(
                "TorchState is for synchronous training: in asynchronous training the servers have the weights"
            )
        if taken := [name for name in parts if name in _OWN or name.startswith("_")]:
            raise SpecError(f"TorchState cannot have a part with the name {taken[0]}: use another one")
        vars(self).update(parts)
        self._names = tuple(parts)
        self._state()
        self._kept: KeptCommits | None = None
        current = session()
        if isinstance(current, LaunchedSession) and current.generation.survives:
            if folder is not None:
                raise SpecError(
                    "TorchState keeps its commits in memory under `hpcps launch --survive`: leave folder= out, and "
                    "save files of your own"
                )
            self.restored, self._kept = False, KeptCommits(self._divided, self._take_back, self._join)
            return
        found = self._folder(folder)
        others, place = _in_use.setdefault(session(), set()), found.resolve()
        if place in others:
            raise SpecError(f"another TorchState uses {found} already: give all parts to one, or one of them a folder=")
        self._commits = Commits(found, size())
        self._commits.prepare()
        self._number = self._commits.newest()
        if not self._is_everywhere():
            raise RunError(
                f"the processes find different states in {found}: give TorchState a folder= that all of them can read, "
                "and only processes of this script write"
            )
        self.restored = self._number > 0
        if self.restored:
            self._restore()
        # A commit of all processes may follow only when nobody has files of one that not all had.
        self._commits.keep(rank(), self._number)
        self._is_everywhere()
        others.add(place)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in ("restored", *self._names):
            raise SpecError(f"this TorchState does not keep {name}: give it to TorchState(…, {name}=)")
        super().__setattr__(name, value)

    def commit(self) -> None:
        """Write the state of this process; returns when all processes have written theirs.

        Under `hpcps launch --survive`, this keeps it in memory instead.

        Raises:
            RunError: it cannot be written, or not all processes take part, or not equally often.
            SpecError: a part has what cannot be kept.
        """
        if self._kept is not None:
            self._kept.commit()
            self._note_commit()
            return
        buffer, record = io.BytesIO(), session().record
        torch.save({"parts": self._state(), "random": _random_states()}, buffer)
        self._number += 1
        recorded = {} if record is None else record.committed()
        self._commits.write(rank(), self._number, buffer.getbuffer(), recorded)
        if not self._is_everywhere():
            raise RunError(
                "the processes commit different states: all must call commit() equally often, and none before it join()"
            )
        self._commits.keep(rank(), self._number)

    def sync(self) -> None:
        """Give all processes the models, optimizers and tensors of process 0; all call this at the same time.

        Under `hpcps launch --survive`, all go back to the last commit instead, if there is one. `elastic.run` does this
        before it calls its function, and a script does it after `resume` with another number of processes: those that
        have joined get models, optimizers and tensors of the commit, and the values of process 0, such as its step.
        Their random numbers and generators are those that they have. After a start from files, this does nothing.
        """
        if self._kept is None:
            if not self.restored:
                self._take_back(read(broadcast_object(written(self._divided()[0]), 0, "state")))
            return
        giver, current = self._kept.agree(), session()
        if isinstance(current, LaunchedSession) and current.record is not None and current.rank == giver:
            if current.generation.number and not self._kept.found:
                report(current.name, "no living process has a commit: the script begins at its beginning")
            for change in () if current.has_committed else current.changes:
                if isinstance(change, Loss):
                    current.record.note_loss(f"{change.role}-{change.index}", change.why)
                else:
                    current.record.note_resize(change.workers, change.servers, change.joined, change.left)
        if not self._kept.is_of_all:
            self.commit()

    def _note_commit(self) -> None:
        """Tell the launcher of the first commit in a generation."""
        current = session()
        if isinstance(current, LaunchedSession) and not current.has_committed:
            current.has_committed = True
            if current.rank == 0:
                current.generation.note_commit()

    def _divided(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the states of the parts that are equal in all processes, and what each process has for itself."""
        states, record = self._state(), session().record
        shared = {name: states.pop(name) for name in self._names if _is_shared(getattr(self, name))}
        recorded = {} if record is None else record.committed(synced=False)
        return shared, states | {_RANDOM: _random_states(), _RECORD: recorded}

    def _take_back(self, states: Mapping[str, Any]) -> None:
        """Give parts their states, and what else `_divided` has returned."""
        for name, state in states.items():
            if name == _RANDOM:
                _restore_random(state)
            elif name != _RECORD:
                self._give(name, state)
            elif (record := session().record) is not None:
                record.resume(state)

    def _join(self, states: Mapping[str, Any]) -> None:
        """Give the parts that differ between processes what another process has of them, except for random numbers."""
        own = {name for name in states if isinstance(getattr(self, name, None), torch.Generator)}
        for name, state in states.items():
            if name == _RECORD and (record := session().record) is not None:
                record.join(state)
            elif name not in (_RANDOM, _RECORD, *own):
                self._give(name, state)

    def _is_everywhere(self) -> bool:
        """Wait for all processes; return whether all of them have a commit of this number."""
        return allgather(torch.tensor([self._number]), "state").tolist() == [self._number] * size()

    def _state(self) -> dict[str, Any]:
        """Return the state of each part, which torch can read back without executing what is in a file.

        Raises:
            SpecError: it cannot.
        """
        state = {}
        for name in self._names:
            part = getattr(self, name)
            owned = _state_of(part)
            state[name] = _plain(part if owned is None else owned)
            if not _is_plain(state[name]) and not (owned is not None and _is_readable(state[name])):
                what = f"{name}, which is of type {type(part).__name__}" if owned is None else f"the state of {name}"
                raise SpecError(
                    f"TorchState cannot keep {what}: give what has state_dict() and load_state_dict(), or tensors, "
                    "numbers, texts, and lists, tuples and dictionaries of these"
                )
            if owned is None and not isinstance(part, Tensor) and _has_bound(part):
                raise SpecError(
                    f"TorchState cannot keep {name}: it contains tensors that require gradients, or of a GPU, and "
                    "those that it reads back would be others: give each of them to TorchState by itself"
                )
        return state

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
            states, numbers = dict(found["parts"]), dict(found["random"])
        except Exception as error:
            raise RunError(
                f"the state {file} cannot be read ({type(error).__name__}): it is damaged, or of another version of "
                "hpcps or torch; remove its folder to begin again"
            ) from error
        if states.keys() != set(self._names):
            there, mine = (", ".join(sorted(names)) for names in (states, self._names))
            raise SpecError(
                f"{self._commits.folder} has the state of {there}, and this one has {mine}: give the same parts, or "
                "remove the folder to begin again"
            )
        for name, state in states.items():
            try:
                self._give(name, state)
            except SpecError:
                raise
            except Exception as error:
                raise SpecError(
                    f"{name} cannot take the state of the last commit, which is in {self._commits.folder}: "
                    f"{' '.join(message_of(error).split())}; give the same parts, or remove the folder to begin again"
                ) from error
        _restore_random(numbers)
        if (record := session().record) is not None:
            record.resume(self._commits.recorded(rank(), self._number))

    def _give(self, name: str, state: Any) -> None:
        """Give a part its state."""
        part = getattr(self, name)
        if isinstance(part, torch.Generator):
            part.set_state(state)
        elif hasattr(part, "load_state_dict"):
            part.load_state_dict(state)
        elif not isinstance(part, Tensor):
            setattr(self, name, state)
        elif isinstance(state, Tensor) and (state.shape, state.dtype) == (part.shape, part.dtype):
            with torch.no_grad():
                part.copy_(state)
        else:
            was = _described(state) if isinstance(state, Tensor) else f"no tensor, but {state!r:.50}"
            raise SpecError(f"{name} was {was} at the last commit, and is {_described(part)} now")


def _is_shared(part: Any) -> bool:
    """Return whether a part is equal in all processes; others, such as loaders, may have their own state."""
    return isinstance(part, _SHARED)


def _state_of(part: Any) -> Any:
    """Return the state of a part that has one; None of a value."""
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.state_dict() if hasattr(part, "load_state_dict") else None


def _plain(value: Any) -> Any:
    """Return a value with the numbers of numpy that it contains as numbers of Python."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if type(value) in (dict, OrderedDict):
        return type(value)((_plain(key), _plain(each)) for key, each in value.items())
    return value


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) in (dict, OrderedDict):
        return all(map(_is_plain, value.keys())) and all(map(_is_plain, value.values()))
    return type(value) in _VALUES or isinstance(value, Tensor)


def _is_readable(state: Any) -> bool:
    """Return whether torch reads a state back without executing what is in a file."""
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception:
        return False
    return True


def _has_bound(value: Any) -> bool:
    """Return whether a value contains a tensor that requires gradients, or is on a device."""
    if isinstance(value, Mapping):
        return any(map(_has_bound, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_bound, value))
    return isinstance(value, Tensor) and (value.requires_grad or value.device.type != "cpu")


def _described(tensor: Tensor) -> str:
    return f"a tensor {list(tensor.shape)} of {tensor.dtype}"


def _random_states() -> dict[str, Any]:
    """Return the states of the generators that scripts use, as tensors, numbers and texts."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    words = torch.from_numpy(np.asarray(keys).astype(np.int64))
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "random": random.getstate(),
        "numpy": (kind, words, int(position), int(has_gauss), float(gauss)),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["random"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
