"""hpcps: parameter-server training experiments on MPI clusters.

A script or notebook imports what it needs from here: `load`, `check`, `search`, `run` and `submit` for experiments,
`results` for their records, `registry` for components by name, `rules` and `attacks` as functions on arrays, and
`Learner` to train one worker. A name is imported at its first use, so `import hpcps` is fast and needs neither MPI nor
a training framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "CallbackError",
    "Callbacks",
    "DataError",
    "EvaluationReport",
    "Experiment",
    "HpcpsError",
    "InputError",
    "LaunchError",
    "Learner",
    "RoundReport",
    "RunError",
    "SpecError",
    "SubmittedRun",
    "UnknownComponentError",
    "attacks",
    "check",
    "load",
    "registry",
    "results",
    "rules",
    "run",
    "search",
    "submit",
    "summary",
]

if TYPE_CHECKING:
    from hpcps import attacks, registry, rules
    from hpcps.callbacks import Callback, Callbacks, EvaluationReport, RoundReport
    from hpcps.errors import (
        CallbackError,
        DataError,
        HpcpsError,
        InputError,
        LaunchError,
        RunError,
        SpecError,
        UnknownComponentError,
    )
    from hpcps.library.experiment import Experiment, check, load, run, search
    from hpcps.library.learner import Learner
    from hpcps.library.submission import SubmittedRun, submit
    from hpcps.library.tables import results, summary
else:
    _MODULES = {"attacks", "registry", "rules"}
    _HOMES = {
        **dict.fromkeys(("Callback", "Callbacks", "EvaluationReport", "RoundReport"), "hpcps.callbacks"),
        **dict.fromkeys(("Experiment", "check", "load", "run", "search"), "hpcps.library.experiment"),
        **dict.fromkeys(("SubmittedRun", "submit"), "hpcps.library.submission"),
        **dict.fromkeys(("results", "summary"), "hpcps.library.tables"),
        "Learner": "hpcps.library.learner",
    }

    def __getattr__(name: str) -> object:
        """Import a name at its first use (PEP 562)."""
        if name in _MODULES:
            return import_module(f"hpcps.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'hpcps' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES.get(name, "hpcps.errors")), name)
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
