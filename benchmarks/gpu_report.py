"""The report of gpu.py: what was measured, what was not and why, and the targets."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import bars
import device_rules
from gpu_runs import COLUMNS, CURVE, Played

MODES = {
    "direct": "buffers direct: MPI sends device memory",
    "staged": "buffers staged through host memory",
}
PARTS = {
    "runs": "Figure 3's four rules, as `hpcps run` chooses the buffers",
    "rules": "rules on the device, against a copy",
    **MODES,
    "ddp": "torch DDP of the same model",
    "steps": "a step of one worker alone",
}
"""The parts in the order in which they are measured."""
STATES = {(True, False): "measured", (True, True): "measured in part: ", (False, True): "not measured: "}


def report(found: Mapping[str, Any], missing: Mapping[str, str], about: str) -> str:
    """Return gpu.md.

    Args:
        found: the result of each part that was measured.
        missing: why the other parts were not, or not in whole.
        about: the machine and the settings.
    """
    lines = ["# Sixteen workers on one GPU", "", about, "", "| Part | |", "|---|---|"]
    lines += [
        f"| {title} | {STATES[name in found, name in missing]}{missing.get(name, '')} |"
        for name, title in PARTS.items()
        if name in found or name in missing
    ]
    if wanted := bars_of(found, missing):
        lines += ["", "| | Wanted | Measured | |", "|---|---|---|---|"]
        verdicts = {True: "✓", False: "**missed**"}
        lines += [f"| {bar.what} | {bar.wanted} | {bar.measured} | {verdicts[bar.holds]} |" for bar in wanted]
    if played := {name: found[name] for name in ("runs", *MODES) if name in found}:
        lines += _runs(played)
    if "ddp" in found:
        lines += ["", "| torch DDP | ranks | batch of a rank | images/s |", "|---|---:|---:|---:|"]
        lines += [f"| {row[0]} | {row[1]} | {row[2]} | {row[3]:.0f} |" for row in found["ddp"]["rows"]]
    if "steps" in found:
        eager, replayed = (f"{each * 1e3:.2f} ms" if each else "not possible here" for each in found["steps"])
        lines += ["", f"A step of one worker alone: eager {eager}, replayed as a CUDA graph {replayed}."]
    if "rules" in found:
        lines += device_rules.report([device_rules.Rate(**rate) for rate in found["rules"]])
    return "\n".join([*lines, ""])


def _runs(played: Mapping[str, Any]) -> list[str]:
    """Return the tables of runs."""
    rows = [
        ("" if part == "runs" else part.replace("_", " "), Played(**one), there["startup"])
        for part, there in played.items()
        for one in there["played"]
    ]
    return [
        "",
        f"`between`: the share of a round in which not even the slowest process takes local steps. A curve: {CURVE} "
        "rounds at this rate, and what comes before and after them.",
        "",
        "| rule | buffers | images/s of all workers | ms a round | of these, steps | between | minutes of a curve |",
        "|---|---|---:|---:|---:|---:|---:|",
        *(
            f"| {one.rule} | {buffers or one.buffers} | {one.images:.0f} | {one.round * 1e3:.1f} | "
            f"{one.steps * 1e3:.1f} | {one.between:.1%} | {one.curve(startup) / 60:.1f} |"
            for buffers, one, startup in rows
        ),
        "",
        "How each role spends its time, by its records; evaluations run beside the steps:",
        "",
        f"| rule | buffers | role | {' | '.join(COLUMNS)} |",
        f"|---|---|---|{'---:|' * len(COLUMNS)}",
        *(
            f"| {one.rule} | {buffers or one.buffers} | {role} | "
            f"{' | '.join(f'{shares[column]:.1%}' for column in COLUMNS)} |"
            for buffers, one, _ in rows
            for role, shares in one.shares.items()
        ),
    ]


def bars_of(found: Mapping[str, Any], missing: Container[str] = ()) -> list[bars.Bar]:
    """Return the targets of the parts that were measured in whole: of runs, those of the slowest rule."""
    reached = []
    if "runs" in found and "runs" not in missing:
        played, startup = [Played(**one) for one in found["runs"]["played"]], found["runs"]["startup"]
        images, between = min(one.images for one in played), max(one.between for one in played)
        curve = max(one.curve(startup) for one in played) / 60
        what = "images/s of 16 workers on one GPU, rounds included"
        reached = [
            bars.Bar(what, "≥ 45000", f"{images:.0f}", images >= 45_000),
            bars.Bar("share of its rounds that is exchange and combining", "< 8 %", f"{between:.1%}", between < 0.08),
            bars.Bar("minutes of a 200-epoch curve on one GPU", "< 5", f"{curve:.1f}", curve < 5),
        ]
    rates = () if "rules" in missing else found.get("rules", ())
    return reached + device_rules.bars_of([device_rules.Rate(**rate) for rate in rates])
