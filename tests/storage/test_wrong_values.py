"""Values that pydantic refuses are told in the program's words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from compressor.storage.wrong_values import wanted


class _Model(BaseModel, extra="forbid"):
    name: str


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Annotated[int, Field(gt=3)], 3, "must be above 3"),
        (Annotated[float, Field(ge=0.5)], 0, "must be 0.5 or more"),
        (Annotated[int, Field(lt=3)], 3, "must be below 3"),
        (Annotated[int, Field(le=3)], 4, "must be 3 or less"),
        (Annotated[float, Field(allow_inf_nan=False)], "nan", "must be a finite number"),
        (int, 1.5, "must be a whole number"),
        (int, "x", "must be a whole number"),
        (float, "x", "must be a number"),
        (bool, "x", "must be true or false"),
        (str, 1, "must be a text"),
        (Path, 1, "must be a path"),
        (list[int], 1, "must be a list"),
        (dict[str, int], 1, "must be an object"),
        (_Model, 1, "must be an object"),
        (_Model, {}, "is missing"),
        (_Model, {"name": "x", "other": 1}, "is unknown here"),
        (None, 1, "must be null"),
        (Literal["a", "b"], "c", "must be 'a' or 'b'"),
        (Annotated[list[int], Field(min_length=2)], [1], "must have 2 entries or more"),
        (Annotated[str, Field(max_length=2)], "abc", "must have 2 characters or fewer"),
        (complex, [], "has another form than it must have"),  # no words of its own
    ],
)
def test_words(kind: Any, value: object, words: str):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    assert wanted(caught.value.errors()[0]) == words
