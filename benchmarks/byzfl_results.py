"""The results of `byzfl_benchmark.py`: a file of lines that grows, from which a stopped study goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from byzfl_study import ATTACKS, RATES, RULES, SIDES, Cell, Settings, Side, searched_cells
from processes import MeasurementError


@dataclass(frozen=True)
class Training:
    """The result of a training by one library.

    Attributes:
        accuracy: the share of the test samples, or of those held out, that the final model classifies rightly.
        seconds: those of the training and its evaluation.
        cpu: the CPU seconds of the same.
        memory: the largest resident set of the library's process so far, in MiB.
    """

    accuracy: float
    seconds: float
    cpu: float
    memory: float


@dataclass
class Results:
    """The finished trainings.

    Attributes:
        file: a line of JSON for the settings, for each machine and for each cell.
        settings: the settings of all trainings.
        machines: descriptions of the machines, one for each start.
        found: the results of both libraries by cell.
    """

    file: Path
    settings: Settings
    machines: list[str] = field(default_factory=list)
    found: dict[Cell, Mapping[Side, Training]] = field(default_factory=dict)

    @classmethod
    def begin(cls, file: Path, settings: Settings) -> Results:
        """Read the results so far, or begin a new file.

        Raises:
            MeasurementError: the file has results of other settings.
        """
        results = cls(file, settings)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            results._append({"settings": settings.record()})
            return results
        results = cls.read(file)
        if results.settings != settings:
            there = ", ".join(f"{key} = {value}" for key, value in results.settings.record().items())
            raise MeasurementError(
                f"{file} has results of other settings ({there}): use the same ones, another --output, or remove it"
            )
        whole = "".join(line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n"))
        file.write_text(whole)  # a line that was cut off when the process was killed is measured again
        return results

    @classmethod
    def read(cls, file: Path) -> Results:
        """Read a file; a last line that was cut off is left out."""
        lines = [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        results = cls(file, Settings(**lines[0]["settings"]))
        for line in lines[1:]:
            if "machine" in line:
                results.machines.append(line["machine"])
            else:
                results.found[Cell(**line["cell"])] = {side: Training(**line[side]) for side in SIDES}
        return results

    def begin_on(self, machine: str) -> None:
        """Record on which machine the next trainings are."""
        self.machines.append(machine)
        self._append({"machine": machine})

    def add(self, cell: Cell, trainings: Mapping[Side, Training]) -> None:
        """Record a cell that both libraries have trained."""
        self.found[cell] = trainings
        self._append({"cell": asdict(cell), **{side: asdict(each) for side, each in trainings.items()}})

    def _append(self, line: Mapping[str, Any]) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def scores(self, rule: str) -> dict[float, float]:
        """Return the score of each rate of a rule: the worst accuracy over the attacks, as the mean of both libraries.

        A rate without results of all attacks is missing.
        """
        found = {}
        for rate in RATES:
            of_rate = [cell for cell in searched_cells() if (cell.rule, cell.rate) == (rule, rate)]
            if all(cell in self.found for cell in of_rate):
                worst = [min(self.found[cell][side].accuracy for cell in of_rate) for side in SIDES]
                found[rate] = sum(worst) / len(worst)
        return found

    def rates(self) -> dict[str, float]:
        """Return the rate with the best score of each rule, the smallest of equal ones; all are known then."""
        scores = {rule: self.scores(rule) for rule in RULES}
        assert all(len(each) == len(RATES) for each in scores.values()), "the search is not finished"
        return {rule: max(each, key=lambda rate: (each[rate], -rate)) for rule, each in scores.items()}

    def worst(self, rule: str, f: int, gamma: float, side: Side) -> dict[int, tuple[float, str]]:
        """Return the worst accuracy over the attacks and its attack, by seed; seeds without all attacks are missing."""
        mine = {
            (cell.seed, cell.attack): each[side].accuracy
            for cell, each in self.found.items()
            if not cell.search and (cell.rule, cell.f, cell.gamma) == (rule, f, gamma)
        }
        seeds = sorted({seed for seed, _ in mine})
        done = [seed for seed in seeds if all((seed, attack) in mine for attack in ATTACKS)]
        return {seed: min((mine[seed, attack], attack) for attack in ATTACKS) for seed in done}
