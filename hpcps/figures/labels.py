"""Names for people and files, made from the texts of a table: `random, scale 1, by worker`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence

SEPARATOR = " · "

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z_]\w*")
_PART = re.compile(r"(?:\[[^\]]*\]|\{[^}]*\}|[^\s\[{])+")


def parse(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the kind in the text of a table, and its keys and values.

    The pre-aggregators of a rule are part of its kind, and their keys and values are among those of the rule:
    `krum before [nnm f 1] f 2` gives `nnm + krum`, with `nnm.f` and `f`.
    """
    kind, *rest = _PART.findall(text) or [text]
    if len(rest) % 2:
        rest.insert(0, "scale")
    kinds: list[str] = []
    pairs: list[tuple[str, str]] = []
    for key, value in zip(rest[::2], rest[1::2], strict=True):
        if key == "before":
            for stage in filter(None, value.strip("[]").split(", ")):
                name, *words = stage.split(" ")
                kinds.append(name)
                pairs += [(f"{name}.{inner}", word) for inner, word in zip(words[::2], words[1::2], strict=False)]
        else:
            pairs.append((key, value))
    return " + ".join([*kinds, kind]), tuple(pairs)


def of_value(text: str) -> str:
    """Return a swept value for people: `random 1 scope worker` gives `random, scale 1, by worker`.

    The text is that of a plain value, or that of a table: its kind, its scale, and pairs of a key and a value.
    """
    kind, pairs = parse(text)
    for key, value in pairs:
        words = all(map(_WORD.fullmatch, key.split(".")))
        if not words or " " in value or (key == "scale" and not _NUMBER.fullmatch(value)):
            return _plain(text)  # a text that is not a table, or has a list
    said = [f"by {value}" if key == "scope" else f"{_plain(key.replace('.', ' '))} {value}" for key, value in pairs]
    return ", ".join([_plain(kind), *said])


def of_key(key: str) -> str:
    """Return a swept column for people: `data.split` gives `split`, `communication.skip_rate` gives `skip rate`."""
    *tables, last = key.split(".")
    return _plain(tables[-1] if tables and last in ("kind", "name") else last)


def of_panel(keys: Sequence[str], panel: str) -> str:
    """Return the title of a panel: `attack: random, scale 1 · skip rate: 0.2`."""
    values = panel.split(SEPARATOR)
    if not panel or len(values) != len(keys):
        return _plain(panel)
    return SEPARATOR.join(f"{of_key(key)}: {of_value(value)}" for key, value in zip(keys, values, strict=True))


def _plain(text: str) -> str:
    return text.replace("_", " ")


TOLERANCES = frozenset({"f", "trim"})
"""Keys of rules that say how many Byzantine updates they tolerate. Rules that differ only in them are one rule."""


def without_tolerances(text: str) -> str:
    """Return the text of a rule, its pre-aggregators first, without `TOLERANCES`: `nnm + krum per block`."""
    kind, pairs = parse(text)
    return " ".join([kind, *(_words(pair) for pair in pairs if pair[0].rpartition(".")[2] not in TOLERANCES)])


_LONGEST = 60


def file_name(text: str) -> str:
    """Return a text as a part of the name of a file."""
    return re.sub(r"[^A-Za-z0-9.+_]+", "_", text).strip("_")


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
            short = file_name(f"{key.rpartition('.')[2]}{value.strip('[]')}")
            if item not in shared and len(name) + len(short) < _LONGEST:
                name += f"-{short}"
        name = name or ("-changed" if variant else "")
        number, numbered = 1, name
        while numbered in found:
            number += 1
            numbered = f"{name}-{number}"
        found.append(numbered)
    return found


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
        shorter = {
            text: [pair for pair in pairs if pair[0].rpartition(".")[2] not in left_out]
            for text, pairs in varying.items()
        }
        groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for text, pairs in shorter.items():
            groups.setdefault(tuple(pairs), []).append(text)
        chosen = varying if any(clash(group) for group in groups.values()) else shorter
        names |= {text: " ".join([kind, *map(_words, pairs)]) for text, pairs in chosen.items()}
    return {text: names[text] for text in texts}


def _words(pair: tuple[str, str]) -> str:
    return pair[1] if pair[0] == "scale" else f"{pair[0].replace('.', ' ')} {pair[1]}"
