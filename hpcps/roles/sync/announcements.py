"""What a server says with the models that it sends: epochs, checkpoints, statistics, and which model is the last."""

from __future__ import annotations

from collections.abc import Iterator

from hpcps.attacks import NoAttack
from hpcps.protocol.messages import Flag, Peer, RunEnds
from hpcps.protocol.roster import Roster
from hpcps.protocol.schedule import OpenSchedule, schedule_of_rounds
from hpcps.roles.checkpointing import CHECKPOINT_FLAGS, CheckpointParts
from hpcps.roles.events import Send
from hpcps.roles.queries import QueryAnswers
from hpcps.spec.schema import Run


class Announcements:
    """What the model of each round announces. Only server 0 announces checkpoints; the others hear of them.

    Attributes:
        flags: the flags of the latest model.
        heard: what the models of this round, of this server and of server 0, say of checkpoints.
    """

    def __init__(
        self,
        run: Run,
        steps_per_epoch: int,
        statistics: bool,
        checkpoint: CheckpointParts | None,
        answers: QueryAnswers | None,
    ) -> None:
        """Begin before the first model.

        Args:
            run: the run.
            steps_per_epoch: the batches of the coordinator in an epoch.
            statistics: whether BatchNorm statistics are averaged.
            checkpoint: the checkpoints of the run; None on a server that does not decide on them.
            answers: counts epochs by the steps that a policy permits; None without a policy, and on the other servers.
        """
        self._run, self._steps_per_epoch, self._statistics = run, steps_per_epoch, statistics
        self._checkpoint, self._answers = checkpoint, answers
        self._schedule = schedule_of_rounds(run, steps_per_epoch)
        attacks = not isinstance(run.attack, NoAttack) and run.attack.from_epoch > 0
        self._tells_epoch = attacks and run.train.policy is None
        self.flags = self.heard = Flag.NONE

    def announce(self, round: int, absent: tuple[Peer, ...] = ()) -> None:
        """Decide on the flags of the model of a round; server 0 alone decides on a checkpoint after it.

        A checkpoint has no parts of the workers that are absent.

        With a quorum a late worker does not see the flags of a model. So the last round and one before the statistics
        of all workers wait for everyone, and so does one after which the number of workers changes. Another checkpoint
        waits for nobody: late workers are told of it.
        """
        schedule, checkpoint, flags, next_round = self._schedule, self._checkpoint, Flag.NONE, round + 1
        if isinstance(schedule, OpenSchedule):
            if self._answers is not None:
                schedule.learn(round, self._answers.ended(self._steps_per_epoch))
            next_round = round  # how many epochs this round ends is not known
        measured_next = self._statistics and schedule.epochs_before(round + 1)
        if self._run.has_quorum and (schedule.over(round + 1) or measured_next):
            flags = Flag.EVERYONE
        if checkpoint is not None and not schedule.over(next_round):
            epochs = schedule.ended(next_round - 1), schedule.ended(next_round)
            due = checkpoint.is_due(self._run.checkpoint, (round, round + 1), epochs)
            if checkpoint.open is None:
                checkpoint.due |= due
                if epochs[0] < epochs[1] and checkpoint.end_epoch():
                    flags |= Flag.EVERYONE if self._run.has_quorum else Flag.NONE
                if checkpoint.due or checkpoint.wanted:
                    flags |= checkpoint.begin(round + 1, absent)
        if schedule.over(round):
            flags |= Flag.LAST
        if self._statistics and schedule.epochs_before(round):
            flags |= Flag.STATISTICS
        self.flags = flags

    def begin_round(self) -> None:
        """Begin a round with the latest model."""
        self.heard = self.flags & CHECKPOINT_FLAGS

    def hear(self, flags: Flag) -> None:
        """Note what an answer of this round passes on of server 0's model."""
        self.heard |= flags & CHECKPOINT_FLAGS

    def over(self, round: int) -> bool:
        """Return whether the model of a round is the last."""
        return self._schedule.over(round)

    def over_before(self, round: int) -> bool:
        """Return whether the run is over before a round after the latest model, or stops at a checkpoint before."""
        return self.over(round) or Flag.SUSPEND in self.flags

    def epoch(self, round: int) -> int | None:
        """Return the epochs that had ended when a round began, if somebody needs them."""
        return self._schedule.ended(round) if self._tells_epoch or self._answers else None

    def progress(self) -> float | None:
        """Return the epochs of the run so far, as a fraction, if a policy decides on the steps."""
        return self._answers.progress(self._steps_per_epoch) if self._answers else None

    def learn_end(self, end: RunEnds) -> bool:
        """Note that a round is the last, as server 0 says; return whether this could not be known before."""
        if not isinstance(self._schedule, OpenSchedule):
            return False
        self._schedule.learn(end.round, self._run.train.epochs)
        return True

    def tell_end(self, round: int) -> Iterator[Send]:
        """Tell those that cannot know it that the model of a round was the last."""
        roster = Roster.of(self._run)
        peers: tuple[Peer, ...] = (*roster.all_servers()[1:], *roster.adversaries()) if self._answers else ()
        for peer in peers:
            yield Send(peer, RunEnds(round=round))

    def round_fields(self) -> dict[str, object]:
        """Return the fields of the record of a round."""
        return {} if self._answers is None else self._answers.round_fields(self._steps_per_epoch)

    def facts(self, round: int) -> dict[str, object]:
        """Return what a checkpoint contains at the begin of a round."""
        epochs = self._schedule.ended(round)
        return {"steps_per_epoch": self._steps_per_epoch, "statistics": self._statistics, "epochs": epochs}

    def resume(self, round: int, epochs: int) -> None:
        """Begin at a round that so many epochs precede."""
        if isinstance(self._schedule, OpenSchedule):
            self._schedule.learn(round - 1, epochs)
