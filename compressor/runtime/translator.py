"""Translating texts with an exported model."""

from __future__ import annotations

from compressor.runtime.generator import Generator


class Translator(Generator):
    """An exported translator; `translate` and `translate_stream` are the methods of `Generator`."""

    task = "translation"

    translate = Generator.generate_texts
    translate_stream = Generator.generate_stream
