"""What running out of memory looks like, in whichever library it happens."""

from __future__ import annotations

import errno
import re

_MESSAGES = re.compile(
    r"not enough memory|can.?t allocate memory|cannot allocate memory|failed to allocate memory"
    r"|failed to map segment|bad allocation|bad_alloc|CUDA out of memory|\(os error 12\)"
    r"|cannot enable executable stack|AllocateRawInternal",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error comes from a lack of memory: Python's, a library's, or the loader's."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or getattr(seen, "errno", None) == errno.ENOMEM:
            return True
        if _MESSAGES.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def memory_message(command: str, doing: str) -> str:
    """What to do about it; `doing` is the last message about work under way, or empty."""
    while_doing = f" while {doing}" if doing else ""
    return (
        f"memory ran out in `compress {command}`{while_doing}; use fewer or shorter rows, smaller "
        "batches or a smaller model, raise the limit (ulimit -v, the container's), or use a "
        "machine with more"
    )
