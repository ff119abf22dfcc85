"""How tests ask for an expected error: by its id, not by its wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compressor.errors import CompressError


@contextmanager
def raises(error: type[CompressError], id: str) -> Iterator[pytest.ExceptionInfo[CompressError]]:
    """Like `pytest.raises`, for an error of exactly this class and id.

    The message must be one line: it is one sentence to the user.
    """
    with pytest.raises(error) as caught:
        yield caught
    assert caught.type is error
    assert caught.value.id == id, f"{caught.value.id}: {caught.value}"
    assert str(caught.value)
    assert "\n" not in str(caught.value)
