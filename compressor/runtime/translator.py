"""Translating texts with an exported model."""

from __future__ import annotations

from typing import ClassVar

from compressor.runtime.generator import Generator


class Translator(Generator):
    """An exported translator; `translate` and `translate_stream` are the methods of `Generator`."""

    task = "translation"
    line_options: ClassVar[tuple[str, ...]] = (
        *Generator.line_options,
        "source_language",
        "target_language",
    )
    answer_name = "translation"

    translate = Generator.generate_texts
    translate_stream = Generator.generate_stream
