"""What is wrong with a value that pydantic refuses, in the words of this program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# pydantic's types of errors -> a sentence whose subject is the value.
_WORDS = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be {ge:g} or more",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be {le:g} or less",
    "finite_number": "must be a finite number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "string_too_short": "must have {min_length} characters or more",
    "string_too_long": "must have {max_length} characters or fewer",
    "path_type": "must be a path",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "mapping_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dataclass_type": "must be an object",
    "none_required": "must be null",
    "missing": "is missing",
    "extra_forbidden": "is unknown here",
    "literal_error": "must be {expected}",
    "too_short": "must have {min_length} entries or more",
    "too_long": "must have {max_length} entries or fewer",
}


def wanted(problem: Mapping[str, Any]) -> str:
    """What a value must be, such as `must be below 1`.

    Args:
        problem: one of `ValidationError.errors()`.

    Returns:
        Words that follow the value or its name; of a validator of this program its own message.
    """
    if problem["type"] in ("value_error", "assertion_error"):
        return " ".join(str(problem["ctx"]["error"]).split())[:300]
    words = _WORDS.get(problem["type"], "has another form than it must have")
    return words.format_map(problem.get("ctx", {}))
