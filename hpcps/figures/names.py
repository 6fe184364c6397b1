"""Suffixes of file names that distinguish the variants of an experiment."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 60


def suffixes(variants: Sequence[str]) -> list[str]:
    """Return the suffix of the file names of each variant's figures, such as `-limit5000-epochs4`.

    The suffix is empty if there is only one variant, and for runs that do not differ from the experiment file. It omits
    values that all other variants share, and values beyond a readable length. A number distinguishes equal suffixes.
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
