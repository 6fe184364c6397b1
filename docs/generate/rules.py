"""Write `docs/rules.md`: each rule and attack, beside what other libraries compute.

    python docs/generate/rules.py

`benchmarks/peers_compare.py` measures the comparison, and calls this at its end.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs"), str(ROOT / "benchmarks")]

from comparison.inputs import GROUPS, Input  # noqa: E402
from comparison.left_out import LEFT_OUT  # noqa: E402
from comparison.libraries import LIBRARIES, NOT_COMPARED  # noqa: E402
from comparison.pair import FORMS, Values, values, written  # noqa: E402
from comparison.pairs import PAIRS  # noqa: E402
from generate.components import _plain as plain  # noqa: E402

from hpcps.errors import SpecError  # noqa: E402
from hpcps.registry import installed  # noqa: E402
from hpcps.rules.base import Rule  # noqa: E402

DATA = ROOT / "benchmarks/results/peers.json"
PAGE = ROOT / "docs/rules.md"

Found = Mapping[str, Any]

TITLES = {"rules": "Rules", "attacks": "Attacks", "preaggregators": "Pre-aggregators"}
SIGNS = {"equal": "=", "except": "(=)", "different": "≠", "": ""}


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(json.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")


def page(data: Found) -> str:
    """Return the page for the content of the data file."""
    return (
        "\n".join([*_introduction(data), *_overview(data), *_meanings(data), *_components(data), *_rest(data)]) + "\n"
    )


def _introduction(data: Found) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    yield from (
        "# Rules and attacks beside other libraries",
        "",
        "<!-- `make peers` measures the comparison and writes this page. -->",
        "",
        "This page defines each rule and attack of hpcps, and compares it with libraries on PyPI: each computes the "
        "same inputs, and the page says with which keys of hpcps the results are equal, or shows an input for which "
        "they differ.",
        "",
        f"Measured on {data['date']} with Python {data['python']}, {versions}. `make peers` measures it again, in a "
        "few minutes. The numbers are in "
        "[peers.json](../benchmarks/results/peers.json). A test fails when a result of hpcps on these inputs changes, "
        "or when a rule or an attack is missing here.",
        "",
        "[ByzFL's benchmark, side by side](../benchmarks/results/byzfl.md) compares trainings by ByzFL and by hpcps. "
        "The optimizer `muon` and the compressor `demo` are neither rules nor attacks: [server "
        "optimizers](explanation/communication.md#server-optimizers), [compressed "
        "updates](explanation/communication.md#compressed-updates).",
        "",
        "## The libraries",
        "",
        "| Library | Version | |",
        "|---|---|---|",
    )
    for name, each in data["libraries"].items():
        library = LIBRARIES[name]
        yield f"| [{library.title}](https://pypi.org/project/{name}/) | {each['version']} | {library.note} |"
    yield from ("", "Not compared:", "", *(f"- {name}: {why}" for name, why in NOT_COMPARED.items()), "")
    yield from (
        "## The inputs",
        "",
        f"{data['inputs']['count']} inputs (digest `{data['inputs']['digest']}`) of n updates, of which f may be "
        "Byzantine. All values are float32 numbers, which the libraries get in float64, so that a difference is one of "
        "definition. Results are equal if they differ by at most two millionths of the largest value, as the "
        "results of hpcps are float32. `krum` and others refuse fewer updates than a bound that depends on f. There "
        "their formulas are compared, because the libraries have other bounds; where the page shows one, it says so.",
        "",
        "| Inputs | |",
        "|---|---|",
        *(f"| {name} | {what} |" for name, what in GROUPS.items()),
        "",
        "hpcps replaces an update that is not finite by zero in all rules, so a row of NaN never makes the result "
        "NaN. The tables say what each library does with one: `NaN` if its result is NaN, `finite` if it is not, and "
        "`error` if it refuses. For attacks the updates are those of h honest workers, and there are b Byzantine ones: "
        "f, or 1 if f = 0.",
        "",
    )


def _overview(data: Found) -> Iterator[str]:
    names = list(data["libraries"])
    yield from (
        "## Overview",
        "",
        "`=` equal on all inputs that both accept; `(=)` equal except for ties, equal updates, one or two updates, or "
        "huge values; `≠` different; empty: the library does not have it. Each sign is that of the best of the keys "
        "that were tried; if the best of the [default keys](#default-keys) has another one, it follows: `= / ≠`. "
        "[Meanings that differ](#meanings-that-differ) also says where results can differ on other "
        "inputs.",
        "",
    )
    for kind, pairs in data["pairs"].items():
        yield f"| {TITLES[kind]} | {' | '.join(LIBRARIES[name].title for name in names)} |"
        yield "|---|" + "---|" * len(names)
        for component in installed().of(kind):
            signs = [_signs(pairs.values(), component, name) for name in names]
            yield f"| `{component}` | {' | '.join(signs)} |"
        yield ""


def _signs(pairs: Iterable[Found], component: str, library: str) -> str:
    """Return the sign of the best keys, and that of the best default keys if it is another one."""
    those = [each for each in pairs if (each["component"], each["library"]) == (component, library)]
    best, usual = _best(those), _best([each.get("default", each) for each in those])
    return best if best == usual else f"{best} / {usual}"


def _best(pairs: Sequence[Found]) -> str:
    return SIGNS[min(map(_kind, pairs), key=list(SIGNS).index, default="")]


def _kind(pair: Found) -> str:
    if pair["verdict"] != "equal":
        return "different"
    return "except" if pair["unlike"] else "equal"


def _meanings(data: Found) -> Iterator[str]:
    notes = {pair.id: pair.note for pairs in PAIRS.values() for pair in pairs}
    noted = [(each, notes[name]) for pairs in data["pairs"].values() for name, each in pairs.items() if notes.get(name)]
    yield from (
        "## Meanings that differ",
        "",
        "| Rule or attack | Library | |",
        "|---|---|---|",
        *(
            f"| `{each['component']}` | {LIBRARIES[each['library']].title}, `{_call(each)}` | {_cell(note)} |"
            for each, note in noted
        ),
        "",
    )


def _components(data: Found) -> Iterator[str]:
    yield from (
        "## Default keys",
        "",
        "A row has two results: with the keys of hpcps that compute what the library does, and with their defaults. Of "
        "the keys in the row, `f` stays, and so does a quantity that the library gets as an argument, such as a radius "
        "or the factor of an attack. `the same`: the other keys of the row have their defaults.",
        "",
    )
    for kind, pairs in data["pairs"].items():
        yield from (f"## {TITLES[kind]}", "", "[Components](reference/components.md) lists the keys of each.", "")
        components = installed().of(kind)
        for name in components:
            title, *rest = inspect.cleandoc(components[name].__doc__ or "").split("\n\n")
            yield from (f"### `{name}`", "")
            for part in (title, *rest):
                yield from (plain(part), "")
            those = [each for each in pairs.values() if each["component"] == name]
            yield from _compared(those)


def _compared(pairs: Sequence[Found]) -> Iterator[str]:
    if not pairs:
        yield from ("None of these libraries has it.", "")
        return
    yield from (
        "| Library | Function | Keys of hpcps | Result | With default keys | NaN |",
        "|---|---|---|---|---|---|",
    )
    for each in pairs:
        keys = f"`{each['ours']}`" if each["ours"] else ""
        title = LIBRARIES[each["library"]].title
        usual = _result({**each, **each["default"]}) if "default" in each else "the same"
        yield f"| {title} | `{_call(each)}` | {keys} | {_result(each)} | {usual} | {each.get('nan', '')} |"
    yield ""
    forms = dict.fromkeys(each["form"] for each in pairs if each["form"] not in ("rows", "honest", "round"))
    for form in forms:
        which = ", ".join(dict.fromkeys(LIBRARIES[each["library"]].title for each in pairs if each["form"] == form))
        yield from (f"{which}: {FORMS[form]}.", "")
    shown = [line for each in pairs for line in (*_differences(each), *_differences_of_default(each))]
    yield from (*shown, "") if shown else ()


def _call(pair: Found) -> str:
    name = pair["call"].split(":")[1]
    module = "serverapp: " if ".serverapp." in pair["call"] else ""
    return f"{module}{name}({pair['theirs']})"


def _result(pair: Found) -> str:
    if pair["form"] == "moments":
        return f"{'equal' if pair['verdict'] == 'equal' else '**different**'} in distribution"
    count = sum(each["count"] for each in pair["unlike"].values())
    if pair["verdict"] == "different":
        return f"**different** for {count} of {pair['inputs']} inputs"
    text = f"equal, largest difference {pair['largest']:.0e}, {pair['inputs'] - count} inputs"
    if pair["unlike"]:
        text += f"; not for {_groups(pair['unlike'])}"
    if pair["refused"]:
        text += f"; refuses {_groups(pair['refused'])}"
    return text


def _groups(groups: Found) -> str:
    return ", ".join(f"{each['count']} of {name}" for name, each in groups.items())


def _differences(pair: Found) -> Iterator[str]:
    """Show an input for each group in which the results differ; only the first if most do."""
    title, shown = LIBRARIES[pair["library"]].title, list(pair["unlike"].items())
    for group, each in shown[: 1 if pair["verdict"] == "different" else None]:
        refusal = _refusal(pair["component"], pair["ours"], each, pair["form"])
        ours = f"hpcps{' with `' + pair['ours'] + '`' if pair['ours'] else ''} "
        ours += f"refuses them ({refusal}), and its formula gives" if refusal else "computes"
        yield (
            f"- {title}, `{_call(pair)}`, {group}: for {_rows(each, pair['form'])}, {ours} {_numbers(each['ours'])}, "
            f"{title} {_numbers(each['theirs'])}."
        )
    if pair["refused"]:
        first = next(iter(pair["refused"].values()))
        error = escape(first["error"], quote=False)
        yield f"- {title}, `{_call(pair)}`, refuses {_groups(pair['refused'])}; {first['input']}: {error}"


def _differences_of_default(pair: Found) -> Iterator[str]:
    """Show an input for which the result with the default keys differs, if that with the keys of the row does not."""
    default = pair.get("default", {"unlike": {}})
    for group in list(default["unlike"])[:1]:
        if group not in pair["unlike"]:
            usual = {**pair, **default, "unlike": {group: default["unlike"][group]}, "refused": {}}
            for line in _differences(usual):
                yield line.replace("hpcps computes", "hpcps by default computes").replace(
                    "hpcps refuses", "hpcps by default refuses"
                )


def _refusal(component: str, keys: str, shown: Found, form: str) -> str:
    """Return why a rule with these keys, as the data file has them, refuses shown updates; empty if it does not."""
    rows = np.array(shown["rows"], np.float64)
    given = values(_keys()[component, keys], Input(shown["input"], "", rows, shown["f"]))
    try:
        rule = installed().of("rules")[component](**given) if component in installed().of("rules") else None
    except SpecError:
        return ""
    return rule.refusal(len(rows) - (form == "reference")) if isinstance(rule, Rule) else ""


@functools.cache
def _keys() -> dict[tuple[str, str], Values]:
    """Return the keys of all pairs by their component and their text."""
    pairs = [pair for those in PAIRS.values() for pair in those]
    return {(pair.component, written(keys)): keys for pair in pairs for keys in (pair.ours, pair.default)}


def _rows(given: Found, form: str) -> str:
    rows = ", ".join(map(_numbers, given["rows"]))
    if form in ("honest", "searched"):
        return f"h = {len(given['rows'])} honest updates {rows} and b = {max(1, given['f'])}"
    return f"n = {len(given['rows'])} updates {rows} and f = {given['f']}"


def _numbers(values: Any) -> str:
    if values and isinstance(values[0], list):
        return f"rows {', '.join(map(_numbers, values))}"
    return "`(" + ", ".join(value if isinstance(value, str) else f"{value:.6g}" for value in values) + ")`"


def _rest(data: Found) -> Iterator[str]:
    yield from ("## What they have beside this", "", "| Library | | |", "|---|---|---|")
    for library, names in LEFT_OUT.items():
        for why in dict.fromkeys(names.values()):
            those = ", ".join(f"`{name}`" for name, reason in names.items() if reason == why)
            yield f"| {LIBRARIES[library].title} | {those} | {why} |"
    yield from ("", "## Traps", "", "| Library | | Measured |", "|---|---|---|")
    for library, what, measured in data["traps"]:
        title = LIBRARIES[library].title if library in LIBRARIES else library
        yield f"| {title} | {_cell(what)} | {_cell(measured)} |"
    yield from _nan(data)


def _nan(data: Found) -> Iterator[str]:
    """Say in a row for each library which of its rules one row of NaN turns into NaN."""
    for library in data["libraries"]:
        pairs = [each for each in data["pairs"]["rules"].values() if each["library"] == library and "nan" in each]
        names = list(dict.fromkeys(each["call"].split(":")[1] for each in pairs))
        bad = list(dict.fromkeys(each["call"].split(":")[1] for each in pairs if each["nan"] == "NaN"))
        if bad:
            those = ", ".join(f"`{name}`" for name in bad)
            yield (
                f"| {LIBRARIES[library].title} | One update of NaN makes the result NaN. | {len(bad)} of {len(names)} "
                f"functions, for n = 7 and f = 1: {those}. |"
            )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
