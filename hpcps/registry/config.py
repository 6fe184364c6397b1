"""The base of everything a user can set in an experiment file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hpcps.errors import SpecError

MOST = 1_000_000
"""The largest value of numbers without another bound, such as counts of epochs, steps or samples."""

LARGEST_FACTOR = 1e100
"""The largest factor: its square fits float64, and it far exceeds the largest float32."""

LARGEST_RATE, SMALLEST_RATE = 3.4e38, 1.2e-38
"""The largest rate that float32 holds, and the smallest that does not lose digits: models and updates are float32."""

MOST_ROLES = 65_536
"""The largest number of processes of a role, of hosts or of cores."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
"""Names that are also the names of folders."""

DAY, WEEK = 86_400.0, 604_800.0
"""The longest delay and the longest wait, in seconds."""


_EXPLAIN = "hpcps.spec.problems", "explain"
"""The function that words the mistakes of a table. It is found by name, because it knows the keys of all components."""

if TYPE_CHECKING:
    from pydantic import BaseModel as ExplainedModel
else:

    class _Explained(type(BaseModel)):
        def __call__(cls, *args: Any, **keys: Any) -> Any:
            # A number or array of numpy, as a loop in a notebook gives it, counts as the number or list.
            plain = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in keys.items()}
            try:
                return super().__call__(*args, **plain)
            except ValidationError as error:
                module, name = _EXPLAIN
                wrong = getattr(import_module(module), name)(cls, error)
            raise wrong

    class ExplainedModel(BaseModel, metaclass=_Explained):
        """A model whose constructor words what is wrong with its arguments as `hpcps check` does for a file."""


class Config(ExplainedModel):
    """A strict, frozen table of an experiment file: unknown keys and wrong types are errors.

    A config class is beside the object that it configures (a rule, an attack); `hpcps.spec.schema` combines them.
    Every field carries `Field(description=...)` with its unit: the JSON Schema and `hpcps check` show it.
    """

    # A process uses few of the components of hpcps: what validates the others is not built.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False, defer_build=True
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Build what validates a user's class, so that its mistakes are errors where it is defined."""
        if not cls.__module__.startswith("hpcps."):
            cls.model_rebuild(raise_errors=False)

    def same_results(self) -> Config:
        """Return what enters a run's id in place of this table: one with another name that computes the same."""
        return self

    @classmethod
    def declarations(cls) -> dict[str, object]:
        """Return what records state about a component in addition to its keys, as JSON values; by default nothing."""
        return {}

    @classmethod
    def faults(cls) -> list[str]:
        """Return the mistakes in what the class declares in addition to its keys; by default none."""
        return []


def component_in(config: type[Config], key: str, table: object) -> Any:
    """Return the component of a table, as a key of a config reads it, for code that knows the component alone.

    Raises:
        SpecError: there is no such component, or its keys are wrong.
    """
    try:
        return getattr(config(**{key: table}), key)
    except SpecError as error:
        found = str(error).splitlines()[1:]
    raise SpecError("\n".join(line.replace(f"  {config.__name__}.", "", 1) for line in found))
