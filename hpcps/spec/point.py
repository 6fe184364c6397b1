"""A point of an experiment: one of its runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hpcps.spec.identity import revisions
from hpcps.spec.members import WorkerCount, described
from hpcps.spec.schema import Run


@dataclass(frozen=True)
class Point:
    """One run of an experiment.

    Attributes:
        index: its position in the file's sweep, from 0.
        run: its resolved values, including sweep, overrides and preset.
        run_id: its id; equal specs have equal ids.
        label: a short name, made from the values that differ from other points.
        swept: the values from the sweep, by dotted key.
        components: the facts about the components that it uses, by the key that names each; see `components_of`.
        plugins: the plugin files that it uses; see `plugins_of`.
        warnings: warnings about its valid settings that are probably not intended, with their lines.
        search: the values that a search chose for it, and where they come from; see `SearchGroup.chosen`.
        members: the numbers of workers that it has had; empty if it was never resized.
    """

    index: int
    run: Run
    run_id: str
    label: str
    swept: dict[str, object] = field(default_factory=dict)
    components: dict[str, dict[str, object]] = field(default_factory=dict)
    plugins: list[dict[str, str]] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    search: dict[str, object] = field(default_factory=dict)
    members: tuple[WorkerCount, ...] = ()

    @property
    def present(self) -> Run:
        """The run with its id and its present number of workers."""
        return self.run.identified(self.run_id).resized(self.members)

    @property
    def spec(self) -> dict[str, Any]:
        """The content of the `spec.json` of the run."""
        return {
            "run_id": self.run_id,
            "label": self.label,
            "index": self.index,
            "swept": dict(self.swept),
            "revisions": revisions(self.run),
            "run": self.run.model_dump(mode="json"),
            "components": self.components,
            "plugins": self.plugins,
            **({"search": self.search} if self.search else {}),
            **({"members": described(self.members)} if self.members else {}),
        }
