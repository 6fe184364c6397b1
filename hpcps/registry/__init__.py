"""Named, configurable components: rules, attacks, policies, server optimizers, data sets, models and others.

A component is a class whose fields are its keys in the experiment file. It is built in, comes from an installed package
(an entry point of the group `hpcps.rules`, `hpcps.attacks`, …) or from a file that the experiment names under
`plugins`; all three work in the same way. `registry.rules`, `registry.attacks` and so on map the names of each kind to
components; `load_plugins` adds those of files.

- `components`: the components of each kind
- `kinds`: the kinds of components, and whether a class is a usable one
- `config`: the base class of everything that has keys in the experiment file
- `field`: a key whose value is a component
- `plugins`: the files of an experiment that define components
- `trial`: executes a plugin file in a child process first
- `failures`: what goes wrong in the code of a component, as an error for people
- `similarity`: the valid name that a person probably meant
"""

from typing import TYPE_CHECKING, Any

from hpcps.registry.components import BUILT_IN, Components, Entry, Origin, Registry, activate, active, installed, using
from hpcps.registry.config import Config
from hpcps.registry.field import OneOf
from hpcps.registry.kinds import KINDS, ComponentKind
from hpcps.registry.plugins import load_plugins

__all__ = [
    "BUILT_IN",
    "KINDS",
    "ComponentKind",
    "Components",
    "Config",
    "Entry",
    "OneOf",
    "Origin",
    "Registry",
    "activate",
    "active",
    "installed",
    "load_plugins",
    "using",
]

if TYPE_CHECKING:
    rules: Components
    preaggregators: Components
    policies: Components
    attacks: Components
    optimizers: Components
    compressors: Components
    datasets: Components
    splits: Components
    models: Components
    callbacks: Components
    launchers: Components
    transports: Components
else:

    def __getattr__(name: str) -> Any:
        """Return the components of a kind: `registry.rules`."""
        if name in KINDS:
            return active().of(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *KINDS]
