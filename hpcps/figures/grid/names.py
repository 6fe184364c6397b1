"""Short names of rules and attacks, made from the texts of a table: `nnm + trimmed_mean`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from hpcps.figures.labels import parse


def short_names(
    texts: Sequence[str], left_out: Collection[str], clash: Callable[[Sequence[str]], bool]
) -> dict[str, str]:
    """Return a short name for each text; texts may get the same name.

    Keys that do not distinguish the texts of one kind are left out of its name.

    Args:
        texts: the texts, each once, such as `krum f 0.1` and `krum f 0.3`.
        left_out: keys that are left out if possible, such as `f`.
        clash: tells whether some texts must have different names, because they occur in the same row.
    """
    kinds: dict[str, list[str]] = {}
    for text in texts:
        kinds.setdefault(parse(text)[0], []).append(text)
    names: dict[str, str] = {}
    for kind, alike in kinds.items():
        counts = Counter(pair for text in alike for pair in parse(text)[1])
        varying = {text: [pair for pair in parse(text)[1] if counts[pair] < len(alike)] for text in alike}
        shorter = {text: [pair for pair in pairs if pair[0] not in left_out] for text, pairs in varying.items()}
        groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for text, pairs in shorter.items():
            groups.setdefault(tuple(pairs), []).append(text)
        chosen = varying if any(clash(group) for group in groups.values()) else shorter
        names |= {text: " ".join([kind, *map(_words, pairs)]) for text, pairs in chosen.items()}
    return {text: names[text] for text in texts}


def _words(pair: tuple[str, str]) -> str:
    return pair[1] if pair[0] == "scale" else " ".join(pair)
