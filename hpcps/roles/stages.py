"""The stages of roles, and what leads from one to the next: a table for each role.

A role changes its stage only by `StageMachine.on`, so it never goes another way than its table says. The process that
keeps checkpoints ends a run that is to stop once all parts are written, in the stage in which it is then. The page of
the protocol draws the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto


class Stage(Enum):
    """What a role does at present."""

    STARTING = auto()
    """A training role may take a step before the first model; a server waits for the initial model."""
    WAITING_FOR_MODEL = auto()
    """It adopts the next model as soon as all of it has come."""
    TRAINING = auto()
    """It adopts the model, and takes its local steps."""
    PACKING = auto()
    """A worker makes its update, delays it if the experiment says so, and shows it to the adversary if there is one."""
    GATHERING = auto()
    """It waits for updates, or for the next partition of them."""
    COMBINING = auto()
    """It combines updates, or filters one; what comes meanwhile is kept."""
    SENDING = auto()
    """Its answer to the model is complete, and goes out, encoded if so, as fast as the receivers take it."""
    SERVING = auto()
    """A server executes the entries of the log."""
    CHECKPOINTING = auto()
    """Synchronous: it writes its part of a checkpoint before it goes on."""
    SUSPENDING = auto()
    """A server writes its part of the checkpoint at which the run stops; then it ends."""
    STOPPING = auto()
    """The coordinator has ended the run, and waits for the last model. A server waits for the evaluation of it."""
    FINISHED = auto()
    """It has nothing left to do."""


class Trigger(Enum):
    """What changes the stage of a role; the value says when that is."""

    READY = "the role has started, and has taken the step before the first model if there is one"
    RESUMED = "the role goes on from a checkpoint, or where a lost one was"
    INITIAL_MODEL = "the initial model has come, or that of a checkpoint is restored"
    MODEL_COMPLETE = "all of the model has come"
    LAST_MODEL = "the model was the last one"
    STEPS_DONE = "the local steps are done, or abandoned"
    UPDATE_READY = "the update is made; the adversary has answered, if there is one"
    ALL_SENT = "the whole answer is sent"
    UPDATE_SENT = "the update is sent, or that there is none, and a model will answer"
    UPDATE_GROWS = 'the worker is absent, and its update grows (`absent = "accumulate"`)'
    SENDS_AGAIN = "a resumed run needs the answer that the worker owed at the checkpoint"
    UPDATES_COMPLETE = "what is combined next has come from all that take part in it"
    COMBINED = "it is combined"
    ALL_COMBINED = "it is combined, and was the last of the round"
    ALL_HANDLED = "as many updates are handled as come before its next model"
    ROUND_BEGINS = "the model of the next round is made"
    CHECKPOINT_DUE = "a checkpoint comes before the next model"
    SUSPENSION_DUE = "the checkpoint is the one at which the run stops"
    CHECKPOINT_WRITTEN = "the part of the checkpoint is written"
    ROUNDS_OVER = "all rounds or cycles are done"
    EVALUATION_DUE = "all rounds are done, and a coordinator that may be lost evaluates the last model"
    RUN_OVER = "the last model is there, and this role does not need it"
    SUSPENDED = "its part of the checkpoint at which the run stops is written"


@dataclass(frozen=True)
class Transition:
    """A line of a table: in this stage, or in any, the trigger leads to the next; `effects` says what the role does."""

    stage: Stage | None
    trigger: Trigger
    next: Stage
    effects: str


@dataclass(frozen=True)
class StageTable:
    """The stages of a role."""

    transitions: tuple[Transition, ...]

    @property
    def next(self) -> Mapping[tuple[Stage, Trigger], Stage]:
        """The stage to which each trigger leads."""
        return {
            (stage, each.trigger): each.next
            for each in self.transitions
            for stage in (Stage if each.stage is None else (each.stage,))
        }


class StageMachine:
    """The stage of a role.

    Attributes:
        stage: the stage.
    """

    def __init__(self, table: StageTable) -> None:
        """Begin with `STARTING`."""
        self._next = table.next
        self.stage = Stage.STARTING

    def on(self, trigger: Trigger) -> None:
        """Go to the stage to which a trigger leads; the table must have a line for it."""
        following = self._next.get((self.stage, trigger))
        assert following is not None, f"{self.stage.name} has no line for {trigger.name}"
        self.stage = following


def _table(*lines: tuple[Stage | None, Trigger, Stage, str]) -> StageTable:
    return StageTable(tuple(Transition(*line) for line in lines))


_S, _T = Stage, Trigger
_CHECKPOINT = "writes its part of the checkpoint once no evaluation is under way"
_TRAINED = (
    (_S.STARTING, _T.READY, _S.WAITING_FOR_MODEL, "if it is the coordinator, sends the initial weights"),
    (_S.STARTING, _T.RESUMED, _S.WAITING_FOR_MODEL, ""),
    (_S.WAITING_FOR_MODEL, _T.MODEL_COMPLETE, _S.TRAINING, "adopts it, evaluates it if that is due, takes its steps"),
    (_S.TRAINING, _T.LAST_MODEL, _S.FINISHED, "ends once no evaluation is under way"),
    (None, _T.SUSPENDED, _S.FINISHED, "tells the process that keeps checkpoints, and ends"),
)
_PACKS = (_S.TRAINING, _T.STEPS_DONE, _S.PACKING, "makes its update")
_ANSWERS = (
    (_S.SENDING, _T.ALL_SENT, _S.WAITING_FOR_MODEL, "records the round, unless it was sent again"),
    (_S.SENDING, _T.CHECKPOINT_DUE, _S.CHECKPOINTING, f"records the round, {_CHECKPOINT}"),
    (_S.CHECKPOINTING, _T.CHECKPOINT_WRITTEN, _S.WAITING_FOR_MODEL, "tells the process that keeps checkpoints"),
)

SYNC_WORKER = _table(
    *_TRAINED, _PACKS,
    (_S.PACKING, _T.UPDATE_READY, _S.SENDING, "sends its partitions, or that it is absent"),
    *_ANSWERS,
    (_S.WAITING_FOR_MODEL, _T.CHECKPOINT_DUE, _S.CHECKPOINTING, f"a late worker: {_CHECKPOINT}"),
    (_S.WAITING_FOR_MODEL, _T.SENDS_AGAIN, _S.SENDING, "sends that answer"),
)  # fmt: skip
SYNC_VALIDATOR = _table(
    *_TRAINED,
    (_S.TRAINING, _T.STEPS_DONE, _S.GATHERING, "begins to combine"),
    (_S.GATHERING, _T.UPDATES_COMPLETE, _S.COMBINING, "combines the partition"),
    (_S.COMBINING, _T.COMBINED, _S.GATHERING, "sends the result to the servers"),
    (_S.COMBINING, _T.ALL_COMBINED, _S.SENDING, "sends the rest as fast as the servers take it"),
    *_ANSWERS,
)  # fmt: skip
SYNC_SERVER = _table(
    (_S.STARTING, _T.INITIAL_MODEL, _S.GATHERING, "sends the model"),
    (_S.STARTING, _T.ROUNDS_OVER, _S.FINISHED, "sends the model, which is the last one, and saves it"),
    (_S.GATHERING, _T.UPDATES_COMPLETE, _S.COMBINING, "combines the partition"),
    (_S.COMBINING, _T.COMBINED, _S.GATHERING, "sends the partition of the next model, unless a checkpoint is due"),
    (_S.GATHERING, _T.ROUND_BEGINS, _S.GATHERING, "records the round"),
    (_S.GATHERING, _T.CHECKPOINT_DUE, _S.CHECKPOINTING, "records the round, writes its part of the checkpoint"),
    (_S.GATHERING, _T.SUSPENSION_DUE, _S.SUSPENDING, "records the round, writes its part of the checkpoint, ends"),
    (_S.GATHERING, _T.ROUNDS_OVER, _S.FINISHED, "records the round, saves its shard, ends"),
    (_S.CHECKPOINTING, _T.ROUND_BEGINS, _S.GATHERING, "sends the model"),
    (_S.CHECKPOINTING, _T.ROUNDS_OVER, _S.FINISHED, "sends the model, saves its shard, ends"),
    (_S.STARTING, _T.EVALUATION_DUE, _S.STOPPING, "sends the model"),
    (_S.GATHERING, _T.EVALUATION_DUE, _S.STOPPING, "records the round"),
    (_S.CHECKPOINTING, _T.EVALUATION_DUE, _S.STOPPING, "sends the model"),
    (_S.STOPPING, _T.ROUNDS_OVER, _S.FINISHED, "saves its shard, ends, once the evaluation is recorded"),
)  # fmt: skip
ASYNC_WORKER = _table(
    *_TRAINED, _PACKS,
    (_S.PACKING, _T.UPDATE_SENT, _S.WAITING_FOR_MODEL, "records the cycle"),
    (_S.PACKING, _T.UPDATE_GROWS, _S.TRAINING, "records the cycle, takes its next steps"),
    (_S.PACKING, _T.ROUNDS_OVER, _S.STOPPING, "the coordinator: records its last cycle, tells the servers"),
    (_S.TRAINING, _T.ROUNDS_OVER, _S.STOPPING, "the coordinator that resumes after it: tells the servers"),
    (_S.STOPPING, _T.MODEL_COMPLETE, _S.TRAINING, "adopts it, evaluates it"),
    (None, _T.RUN_OVER, _S.FINISHED, "ends"),
)  # fmt: skip
ASYNC_VALIDATOR = _table(
    *_TRAINED,
    (_S.TRAINING, _T.STEPS_DONE, _S.GATHERING, "handles its share of updates, or those that have come"),
    (_S.GATHERING, _T.UPDATES_COMPLETE, _S.COMBINING, "passes the update to the rule"),
    (_S.COMBINING, _T.COMBINED, _S.GATHERING, "sends what the rule has left of it to the servers"),
    (_S.GATHERING, _T.ALL_HANDLED, _S.WAITING_FOR_MODEL, "records them, asks for the model"),
    (_S.GATHERING, _T.ROUNDS_OVER, _S.STOPPING, "the coordinator: records them, tells the servers"),
    (_S.STOPPING, _T.MODEL_COMPLETE, _S.TRAINING, "adopts it, evaluates it"),
    (None, _T.RUN_OVER, _S.FINISHED, "ends"),
)  # fmt: skip
ASYNC_SERVER = _table(
    (_S.STARTING, _T.INITIAL_MODEL, _S.SERVING, "sends everyone the model"),
    (_S.SERVING, _T.SUSPENSION_DUE, _S.SUSPENDING, "writes its part of the checkpoint, ends"),
    (_S.SERVING, _T.ROUNDS_OVER, _S.FINISHED, "sends the last model, saves its shard, ends"),
    (_S.SERVING, _T.EVALUATION_DUE, _S.STOPPING, "sends the last model"),
    (_S.STOPPING, _T.ROUNDS_OVER, _S.FINISHED, "saves its shard, ends, once the evaluation is recorded"),
)  # fmt: skip

TABLES = {
    "Worker, synchronous": SYNC_WORKER,
    "Validator, synchronous": SYNC_VALIDATOR,
    "Server, synchronous": SYNC_SERVER,
    "Worker, asynchronous": ASYNC_WORKER,
    "Validator, asynchronous": ASYNC_VALIDATOR,
    "Server, asynchronous": ASYNC_SERVER,
}
"""The tables by title. Workers without servers have that of synchronous workers; what they send is averaged."""
