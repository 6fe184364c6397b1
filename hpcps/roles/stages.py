"""The stages that roles go through."""

from __future__ import annotations

from enum import Enum, auto


class Stage(Enum):
    """What a training role does at present. A synchronous round goes from one model to the next, as does a cycle."""

    STARTING = auto()
    """It has not asked for a model yet; it may take a step before the first one."""
    WAITING_FOR_MODEL = auto()
    """It adopts the next model as soon as all of it has come."""
    TRAINING = auto()
    """It has adopted the model, and takes its local steps."""
    PACKING = auto()
    """A worker makes its update, delays it if the experiment says so, and shows it to the adversary if there is one."""
    GATHERING = auto()
    """A validator waits for updates."""
    COMBINING = auto()
    """A validator combines updates, or filters one."""
    SENDING = auto()
    """Synchronous: its answer to the model is made, and goes out as fast as the receivers take it."""
    CHECKPOINTING = auto()
    """Synchronous: it writes its part of a checkpoint before it adopts the next model."""
    STOPPING = auto()
    """Asynchronous: the coordinator has submitted STOP, and waits for the last model."""


class ServerStage(Enum):
    """What a server does at present."""

    STARTING = auto()
    """It waits for the initial model from the coordinator."""
    GATHERING = auto()
    """Synchronous: it waits for the next partition of the updates."""
    COMBINING = auto()
    """Synchronous: it combines a partition; what comes meanwhile is collected."""
    CHECKPOINTING = auto()
    """Synchronous: it writes its part of a checkpoint before it sends the next model."""
    SERVING = auto()
    """Asynchronous: it executes the entries of the log."""
    SUSPENDING = auto()
    """The run is to stop at a checkpoint that is being written; the server executes nothing after it."""
    FINISHED = auto()
    """It has sent the last model, and saved its shard."""
