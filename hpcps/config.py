"""The base of everything a user can set in an experiment file."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """A strict, frozen table of an experiment file: unknown keys and wrong types are errors.

    A config class lives beside the thing it configures (a rule, an attack); `hpcps.spec.schema` assembles them.
    Every field carries `Field(description=...)` with its unit: the JSON Schema and `hpcps check` show it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False)
