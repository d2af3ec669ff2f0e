"""Untrusted JSON files, checked by pydantic; errors name file, key and allowed values."""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, TypeAdapter, ValidationError, model_validator

from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import file_text, reason_of

_MOST = 2**31 - 1

Flag = StrictBool
Size = Annotated[int, Field(strict=True, ge=1, le=_MOST)]  # a number or width: at least 1
Count = Annotated[int, Field(strict=True, ge=0, le=_MOST)]  # a number: at least 0
Layers = Annotated[int, Field(strict=True, ge=1, le=1024)]
"""Number of layers: at least 1, and not so many that building them takes minutes."""
MaybeLayers = Annotated[int, Field(strict=True, ge=0, le=1024)]
Number = Annotated[float, Field(strict=True, ge=-_MOST, le=_MOST)]
Factor = Annotated[float, Field(strict=True, gt=0, le=_MOST)]
Setting = Annotated[float, Field(strict=True, ge=0, le=_MOST)]


class Foreign(BaseModel):
    """A file of other programs: unknown keys are ignored, and null counts as absent."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


WHOLE = ConfigDict(extra="forbid")  # for a dataclass that refuses unknown keys

T = TypeVar("T")


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def parse_json(text: str, *, finite: bool = False) -> Any:
    """Parse JSON; with `finite` NaN and infinity are errors. Raises ValueError for text that is not JSON, deep nesting
    and half of a surrogate pair.
    """
    try:
        data = json.loads(text, parse_constant=_no_number if finite else None)
        if "\\ud" in text.lower():
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair") from None


def read_json(file: Path, *, hint: str | None = None) -> Any:
    """The data of a JSON file. Raises RequestError; `hint` is for a missing file."""
    try:
        return parse_json(file_text(file))
    except FileNotFoundError:
        raise RequestError(f"{file} is missing", hint=hint) from None
    except (OSError, ValueError) as e:
        raise RequestError(f"{file} can't be read: {reason_of(e)}") from None


def wrong(file: Path | str, key: str, value: Any, needed: str) -> RequestError:
    """The error of a value in a file."""
    return RequestError(f"{file}: key '{key}' is {reprlib.repr(value)}, expected {needed}")


def checked(kind: type[T], data: Any, file: Path | str, key: str = "") -> T:
    """The data of a file, or of a key in it, as a dataclass or model of pydantic. Raises RequestError."""
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as e:
        problem = e.errors(include_url=False)[0]
    at = ".".join(str(part) for part in (key, *problem["loc"]) if part != "")
    if problem["type"] == "missing":
        raise RequestError(f"{file}: key '{at}' is missing")
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        raise RequestError(f"{file}: key '{at}' is unknown")
    if problem["type"] == "value_error":
        raise RequestError(f"{file}: " + (f"key '{at}': " if at else "") + str(problem["ctx"]["error"]))
    mapping = problem["type"] in ("model_type", "dataclass_type")
    raise wrong(
        file, at, problem["input"], "a mapping of keys" if mapping else problem["msg"].removeprefix("Input should be ")
    )


def read_checked(kind: type[T], file: Path, data: object = None, *, of: str = "model") -> T:
    """The data of a checkpoint's JSON file, or `data` if already read; see `checked`."""
    if data is None:
        data = read_json(file, hint=f"the folder holds no {of} checkpoint")
    return checked(kind, data, file)
