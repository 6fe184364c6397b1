"""Plays the points of a sweep until each is done or given up."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hpcps.campaign.agenda import Agenda
from hpcps.campaign.batch import Batch, Ending, play
from hpcps.campaign.lanes import Lanes
from hpcps.cores import Cores
from hpcps.launch.prepare import Site, prepare
from hpcps.launch.signals import stops_of
from hpcps.launch.walltime import SUSPENDED
from hpcps.spec.load import Point


class Display(Protocol):
    """Shows how it goes."""

    def say(self, text: str) -> None:
        """Print a line of its own."""

    def update(self) -> None:
        """Print what is new of the runs."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """How points are played.

    Attributes:
        results: the folder of all results.
        folder: where the files of the launches go.
        site: where and with what a launch runs; None if there is none.
        retry: how many times a run that failed is tried again.
        shares: the cores of each launch, as many as run at a time; one at a time has all.
        until: when to stop at a checkpoint, on the monotonic clock; None: not before all is done.
        trace: whether every process notes what it does when.
    """

    results: Path
    folder: Path
    site: Site | None = None
    retry: int = 0
    shares: Sequence[Cores] = ((),)
    until: float | None = None
    trace: bool = False

    def play(self, points: Sequence[Point], display: Display) -> int:
        """Play points; return how it ended.

        Returns:
            0 if all are done, 1 if any is given up, 128 + the signal if we were told to stop, `SUSPENDED` if time was
            nearly over.

        Raises:
            LaunchError: nothing can be started.
        """
        agenda = Agenda(points, self.retry)
        play = _Play(self, agenda, display)
        status = play.one_by_one() if len(self.shares) == 1 else play.side_by_side()
        if len(points) > 1 and agenda.lost:
            display.say(f"hpcps: {len(agenda.lost)} of {len(points)} runs failed:\n{agenda.report()}")
        return status or (1 if agenda.lost else 0)


class _Play:
    """One performance of a campaign."""

    def __init__(self, campaign: Campaign, agenda: Agenda, display: Display) -> None:
        self._campaign = campaign
        self._agenda = agenda
        self._display = display
        self._launches = 0

    def one_by_one(self) -> int:
        """Play one batch after another, here."""
        while self._agenda.left:
            if self._late:
                return SUSPENDED
            batch = self._next()
            ending = play(batch, self._display.say, self._display.update)
            self._settle(batch, ending)
            if ending.over:
                return ending.status
        return 0

    def side_by_side(self) -> int:
        """Play as many batches at a time as there are shares of the cores."""
        lanes = Lanes(self._campaign.shares, self._display.say)
        status = passed = 0
        with stops_of() as stops:
            while lanes.busy or (self._agenda.left and not status):
                if self._late and not lanes.busy:
                    return status or SUSPENDED
                while self._agenda.left and lanes.free and not status and not self._late:
                    lanes.start(self._next())
                for batch, ending in lanes.wait():
                    self._settle(batch, ending)
                    if ending.over:
                        status = status or ending.status
                for number in stops[passed:]:
                    lanes.stop(number)
                    status = 128 + stops[0]
                passed = len(stops)
                self._display.update()
        return status

    @property
    def _late(self) -> bool:
        """Whether it is too late to begin anything."""
        return self._campaign.until is not None and time.monotonic() > self._campaign.until

    def _next(self) -> Batch:
        """Take what is played next, with its files written."""
        campaign = self._campaign
        points = self._agenda.take(len(campaign.shares))
        batch = Batch(points, campaign.results, sys.argv, until=campaign.until, trace=campaign.trace)
        if points[0].run.transport.kind == "inproc":
            return batch
        assert campaign.site is not None
        self._launches += 1
        name = "conf" if self._launches == 1 else f"conf-{self._launches}"
        (launch,) = prepare(points, campaign.results, campaign.folder / name, campaign.site, trace=campaign.trace)
        launch.write()
        return replace(batch, launch=launch)

    def _settle(self, batch: Batch, ending: Ending) -> None:
        if ending.status:
            self._display.say(f"hpcps: {ending.text}")
        said = self._agenda.settle(batch.points, ending, lambda point: batch.directory(point).done)
        if said:
            self._display.say(f"hpcps: {said}")
