"""Names of files that tell the variants of an experiment apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 60


def marks(variants: Sequence[str]) -> list[str]:
    """Return what the file names of each variant's figures end in, such as `-limit5000-epochs4`.

    Nothing if there is only one variant, and for the one that is as in the experiment file. What all other variants
    have in common is left out, as are values beyond a readable length; then a number tells equal names apart.
    """
    if len(variants) == 1:
        return [""]
    changed = [set(variant.split(" ")) for variant in variants if variant]
    shared = set.intersection(*changed) if len(changed) > 1 else set()
    found: list[str] = []
    for variant in variants:
        name = ""
        for item in variant.split(" ") if variant else ():
            key, _, value = item.partition("=")
            short = re.sub(r"[^A-Za-z0-9.+_]+", "_", f"{key.rpartition('.')[2]}{value.strip('[]')}").strip("_")
            if item not in shared and len(name) + len(short) < _LONGEST:
                name += f"-{short}"
        name = name or ("-changed" if variant else "")
        number, numbered = 1, name
        while numbered in found:
            number += 1
            numbered = f"{name}-{number}"
        found.append(numbered)
    return found
