"""The two frozen models that everything typed is made of: what we write, and what a user wrote."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Frozen(BaseModel):
    """A value: it never changes and has no fields but its own; a docstring under a field is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Settings(Frozen):
    """What a user wrote: besides, no NaN or inf, and no truth value where a number or a text is meant."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and not _takes_truth_values(annotation):  # pydantic would count them as 1 and 0
            raise ValueError("expected a number or text, not true or false (YAML reads yes, no, on and off so)")
        return value


def _takes_truth_values(annotation: Any) -> bool:
    return annotation in (bool, Any) or any(map(_takes_truth_values, get_args(annotation)))
