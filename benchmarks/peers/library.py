"""Runs the rules and attacks of a library on given inputs, in a separate process with the library's own folder.

    python library.py NAME REQUEST ANSWER

REQUEST is a JSON file: `inputs`, lists of rows by name; `calls`, each with an `id`, the `call` (`module:name`), its
`arguments`, the name of the `input` and the `form` of the call; `inventory`, modules whose public names are listed;
and `traps`, names of functions in `library_traps.py`. ANSWER is a JSON file with an answer for each of them.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import types
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np


def shell(*names: str) -> None:
    """Make packages importable without running their code."""
    for name in names:
        spec = find_spec(name)
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(f"there is no package {name}")
        package = types.ModuleType(name)
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules[name] = package


def stand_in(name: str, **values: Any) -> None:
    """Replace a module by one with these names; every other name is an empty class."""
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(values)
    module.__dict__["__getattr__"] = lambda each: type(each, (), {})
    sys.modules[name] = module


class Record(dict):
    """A record of arrays of Flower."""

    def to_numpy_ndarrays(self, keep_input: bool = True) -> list[Any]:
        return list(self.values())


class Content(dict):
    """The content of a message of Flower."""

    @property
    def array_records(self) -> dict[str, Any]:
        return self


def load(library: str) -> None:
    """Make the modules of a library importable."""
    if library == "byzfl":
        shell("byzfl")
    if library == "flwr":
        stand_in("flwr.common")
        shell("flwr", "flwr.server", "flwr.server.strategy", "flwr.serverapp", "flwr.serverapp.strategy")
        stand_in("flwr.server.client_proxy")
        stand_in("flwr.app", ArrayRecord=dict, Array=lambda array: array)
        stand_in("flwr.supercore", log=lambda *words: None)
        stand_in("flwr.serverapp.strategy.fedavg")
        stand_in("flwr.serverapp.strategy.strategy_utils")
        stand_in("flwr.serverapp.exception")
    if library == "flwr-attacks":
        for name in ("", ".common", ".common.parameter", ".common.typing"):
            stand_in(f"flwr{name}")
        for name in ("", ".client_proxy", ".strategy", ".strategy.aggregate"):
            stand_in(f"flwr.server{name}")
        shell("flwr_attacks")
    if library == "fedml":
        shell("fedml", "fedml.core", "fedml.core.security", "fedml.core.security.defense", "fedml.core.security.common")


def byzfl(target: Any, arguments: dict[str, Any]) -> Any:
    given = dict(arguments)
    if "agg" in given:
        aggregators = importlib.import_module("byzfl.aggregators.aggregators")
        given["agg"] = getattr(aggregators, given["agg"])(given["f"])
    return target(**given)


def byzpy(target: Any, arguments: dict[str, Any]) -> Any:
    import torch

    made = target(**arguments)

    def call(rows: Any) -> Any:
        tensors = list(torch.from_numpy(rows))
        if hasattr(made, "apply"):
            given = {"base_grad": tensors[0]} if getattr(made, "uses_base_grad", False) else {"honest_grads": tensors}
            return made.apply(**given)
        return (made.pre_aggregate if hasattr(made, "pre_aggregate") else made.aggregate)(tensors)

    return call


def flwr(target: Any, arguments: dict[str, Any]) -> Any:
    def call(rows: Any) -> Any:
        if target.__name__ == "select_multikrum":
            contents = [Content(arrays=Record(w=row)) for row in rows]
            chosen = target(contents, **arguments)
            return np.mean([content["arrays"]["w"] for content in chosen], axis=0)
        if target.__name__ == "trim_mean":
            return target(rows, **arguments)
        if inspect.isclass(target):
            strategy = target.__new__(target)
            strategy.__dict__.update(arguments, weighted_by_key="", train_metrics_aggr_fn=lambda *given: None)
            strategy.selection_rule = importlib.import_module("flwr.serverapp.strategy.multikrum").select_multikrum
            strategy._check_and_log_replies = lambda replies, is_train: (replies, [])
            replies = [types.SimpleNamespace(content=Content(arrays=Record(w=row))) for row in rows]
            return target.aggregate_train(strategy, 1, replies)[0]["w"]
        given = dict(arguments)
        if "aggregation_rule" in given:
            given["aggregation_rule"] = getattr(sys.modules[target.__module__], given["aggregation_rule"])
        return target([([row], 1) for row in rows], **given)[0]

    return call


def krum(target: Any, arguments: dict[str, Any]) -> Any:
    import torch

    given = dict(arguments)
    if "direction" in given:
        given["direction"] = sys.modules[target.__module__].Direction(given["direction"])

    def call(rows: Any) -> Any:
        tensor = torch.from_numpy(rows)
        if given.get("full_gradient") == "mean":
            return target.generate(tensor, **{**given, "full_gradient": tensor.mean(dim=0)})[0]
        if hasattr(target, "generate"):
            return target.generate(tensor, **given)[0]
        if given.get("pivot") == "first":
            return target.aggregate(tensor, **{**given, "pivot": tensor[0]})
        return target.aggregate(tensor, **given)

    return call


def fedml(target: Any, arguments: dict[str, Any]) -> Any:
    import torch

    made = target(types.SimpleNamespace(**arguments))

    def mean(pairs: Any, *rest: Any) -> Any:
        return {"w": torch.stack([each["w"] for _, each in pairs]).mean(dim=0)}

    def call(rows: Any) -> Any:
        clients = [(10, {"w": row}) for row in torch.from_numpy(rows)]
        if "Clipping" in target.__name__:
            return mean(made.defend_before_aggregation(clients, {"w": torch.zeros(rows.shape[1])}))["w"]
        if hasattr(made, "run") and "run" in target.__dict__:
            return made.run(clients, mean)["w"]
        if "defend_on_aggregation" in target.__dict__:
            return made.defend_on_aggregation(clients, mean)["w"]
        found = mean(made.defend_before_aggregation(clients))
        return (made.defend_after_aggregation(found) if "defend_after_aggregation" in target.__dict__ else found)["w"]

    return call


def fed_playground(target: Any, arguments: dict[str, Any]) -> Any:
    made = target(**arguments)

    def call(rows: Any) -> Any:
        if hasattr(made, "corrupt"):  # the attacker's own update, of which only sign_flip uses more than the shape
            return made.corrupt([*rows, rows[0]], [len(rows)])[-1]
        scheme = importlib.import_module("fed_playground.src.encryption").NoEncryption()
        return made.aggregate(list(rows), scheme)

    return call


def geom_median(target: Any, arguments: dict[str, Any]) -> Any:
    return lambda rows: target(list(rows), **arguments).median


def flwr_attacks(target: Any, arguments: dict[str, Any]) -> Any:
    given = dict(arguments)
    kind = given.pop("perturbation", "")

    def call(rows: Any) -> Any:
        updates = [[row] for row in rows]
        if not kind:
            return target(updates, **given)[0]
        computations = importlib.import_module("flwr_attacks.computations")
        return target(updates, computations.generate_perturbations(updates, kind), **given)[0][0]

    return call


CALLS = {each.__name__: each for each in (byzfl, byzpy, flwr, krum, fedml, fed_playground, geom_median, flwr_attacks)}


def plain(value: Any) -> list[Any]:
    """Return a result as a list of numbers, or of rows."""
    rows = [np.asarray(row) for row in value] if isinstance(value, list) else value
    return np.asarray(rows, np.float64).tolist()


def answer(library: str, call: dict[str, Any], given: Any) -> dict[str, Any]:
    """Return the result of a call, of the same call again, and whether the library changed its input."""
    module, name = call["call"].split(":")

    def result(rows: Any) -> Any:
        function = CALLS[library.replace("-", "_")](getattr(importlib.import_module(module), name), call["arguments"])
        if call["form"] == "twice":
            function(rows.copy())
            rows = -rows / 2
        return plain(function(rows))

    try:
        rows = np.array(given, np.float64)
        before = rows.copy()
        value = result(rows)
        changed = not np.array_equal(rows, before, equal_nan=True)
        return {"value": value, "again": result(before), "changed": changed}
    except Exception as error:  # what the library does not take
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:160]}


def inventory(names: list[str]) -> dict[str, list[str]]:
    """Return the public classes and functions that each module defines, or a package exports."""
    found = {}
    for name in names:
        module = importlib.import_module(name)
        package = hasattr(module, "__path__")
        found[name] = sorted(
            each
            for each, value in vars(module).items()
            if not each.startswith("_")
            and (inspect.isclass(value) or inspect.isfunction(value))
            and (value.__module__ == name or (package and value.__module__.startswith(name)))
            and not inspect.isabstract(value)
        )
    return found


def main(library: str, request: str, written: str) -> None:
    warnings.simplefilter("ignore")
    load(library)
    np.random.seed(1)  # for those that draw from the global generator
    asked = json.loads(Path(request).read_text())
    answers: dict[str, Any] = {
        call["id"]: answer(library, call, asked["inputs"][call["input"]]) for call in asked["calls"]
    }
    if asked.get("traps"):
        import library_traps

        answers["traps"] = {name: getattr(library_traps, name)() for name in asked["traps"]}
    answers["inventory"] = inventory(asked["inventory"])
    Path(written).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
