"""A key of the experiment file whose value is a component."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from hpcps.errors import SpecError, message_of
from hpcps.registry.components import Components, active
from hpcps.registry.config import Config
from hpcps.registry.kinds import KINDS


class OneOf:
    """Annotates a field whose table is validated by the component that it names: `Annotated[Rule, OneOf("rules")]`.

    The field may also take a plain value of another type, such as a number: `OneOf("policies", or_else=PositiveInt)`.

    Each validation looks up the components in the active registry, so that it finds plugins. Errors
    are `component_missing` (the table does not name a component), `component_unknown`, `component_broken` and
    `component_invalid`; the context of the last has the `errors` inside the table.
    """

    def __init__(self, kind: str, or_else: Any = None) -> None:
        self.kind = KINDS[kind]
        self._plain: TypeAdapter[Any] | None = None if or_else is None else TypeAdapter(or_else)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate by the registry, write as the component's own table."""
        return core_schema.no_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(self._dump, info_arg=True),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return one schema for each available component."""
        tables = [
            handler(component.__pydantic_core_schema__) for component in active().of(self.kind.name).usable().values()
        ]
        schema = {"oneOf": tables, "discriminator": {"propertyName": self.kind.tag}}
        plain = {"plain": self._plain.json_schema()} if self._plain else {}
        default = {"default_component": self.kind.default} if self.kind.default else {}
        return {**schema, "shorthand": self.kind.shorthand, "noun": self.kind.noun, **plain, **default}

    def _validate(self, value: object) -> Any:
        if isinstance(value, Config):
            return value
        if self._plain is not None and not isinstance(value, Mapping):
            try:
                return self._plain.validate_python(value, strict=True)
            except ValidationError as error:
                raise PydanticCustomError("component_missing", "no component is named") from error
        components = active().of(self.kind.name)
        table = {self.kind.tag: value} if self.kind.shorthand and isinstance(value, str) else value
        if self.kind.default and isinstance(table, Mapping):
            if not table:
                return components.usual
            table = {self.kind.tag: self.kind.default, **table}
        if not isinstance(table, Mapping) or self.kind.tag not in table:
            raise PydanticCustomError("component_missing", "no component is named")
        name = table[self.kind.tag]
        if not isinstance(name, str) or name not in components:
            rest = {key: inner for key, inner in table.items() if key != self.kind.tag}
            raise PydanticCustomError(
                "component_unknown", "unknown", {"errors": self._common(components, rest), "tag": self.kind.tag}
            )
        try:
            component: type[Config] = components[name]
            return component.model_validate(dict(table))
        except SpecError as error:
            raise PydanticCustomError("component_broken", "broken", {"error": message_of(error)}) from error
        except ValidationError as error:
            details = error.errors(include_url=False)
            raise PydanticCustomError("component_invalid", "invalid", {"errors": details}) from error

    def _common(self, components: Components, rest: Mapping[str, Any]) -> list[Any]:
        """Return the mistakes in the keys that all components of this kind have."""
        shared = self.kind.base_class().model_fields
        known = {key: value for key, value in rest.items() if key in shared}
        any_one = next(iter(components))
        try:
            components[any_one].model_validate({self.kind.tag: any_one, **known})
        except ValidationError as error:
            return [detail for detail in error.errors(include_url=False) if detail["loc"][:1][0] in known]
        return []

    def _dump(self, value: object, info: core_schema.SerializationInfo) -> Any:
        if not isinstance(value, Config):
            return value  # model_copy does not validate the values that it sets
        table = value.model_dump(mode=info.mode, warnings=False)
        return table[self.kind.tag] if self.kind.shorthand and len(table) == 1 else table
