"""Members of one kind by name (tasks, methods, report formats …), imported on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar, cast

from compressor.errors import UsageError, did_you_mean

Member = TypeVar("Member")


class Table(Mapping[str, Member], Generic[Member]):
    """Name -> member, which may be given as where it is: `package.module:attribute`.

    Args:
        noun: what the members are, for messages: `task`.
    """

    def __init__(
        self, noun: str, rows: Mapping[str, Member | str], id: str = "name-unknown"
    ) -> None:
        self.noun, self.id = noun, id
        self._rows: dict[str, Any] = dict(rows)

    def register(self, name: str, member: Member | str) -> None:
        """Add a member from outside this package."""
        self._rows[name] = member

    def __getitem__(self, name: str) -> Member:
        if name not in self._rows:
            raise UsageError(
                f"there is no {self.noun} {name!r}; choose from {', '.join(self._rows)}"
                f"{did_you_mean(name, self._rows)}",
                id=self.id,
            )
        row = self._rows[name]
        if isinstance(row, str):
            self._rows[name] = row = import_object(row)
        return cast(Member, row)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def import_object(path: str) -> Any:
    """The object at `package.module:attribute`, imported."""
    return resolve_name(path)
