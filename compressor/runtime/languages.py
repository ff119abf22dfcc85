"""The languages of a multilingual translator, as an artifact describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compressor.errors import UsageError, did_you_mean
from compressor.runtime.fields import checked, mapping, one_of, optional, text, token_id


@dataclass(frozen=True, kw_only=True)
class Languages:
    """A translator's languages.

    Args:
        codes: code of each language -> its token.
        source: what it translates from; every source holds its token.
        target: what it translates into.
        starts: decoders start with the target's token; else it is forced to be the first.
    """

    codes: Mapping[str, int] = checked(mapping(token_id, 1))
    source: str = checked(text)
    target: str | None = checked(optional(text), None)
    starts: bool = checked(one_of(True, False), False)

    def __post_init__(self) -> None:
        for code in (self.source, self.target):
            if code is not None and code not in self.codes:
                raise ValueError(f"language {code!r:.40} is none of its languages")


def token_of(languages: Languages | None, option: str, code: str) -> int:
    """The token of a language.

    Args:
        languages: of the model; None where it has none.
        option: that names the language, for messages.

    Raises:
        UsageError: the model has no languages, or not that one.
    """
    if languages is None:
        raise UsageError(
            f"{option} {code} is for models with a token for each language, and this one has none; "
            "leave it out",
            id="option-without-use",
        )
    if code not in languages.codes:
        known = sorted(languages.codes)
        raise UsageError(
            f"{option} {code}: the model has no such language{did_you_mean(code, known)}; it has "
            f"{', '.join(known[:12])}{', …' if len(known) > 12 else ''}",
            id="language-unknown",
        )
    return languages.codes[code]
