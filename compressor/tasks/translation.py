"""Translation of sentences with an encoder-decoder model."""

from __future__ import annotations

from typing import ClassVar

from compressor.tasks.encoder_decoder import EncoderDecoderTask


class Translation(EncoderDecoderTask):
    """Translation of sentences."""

    name = "translation"
    metrics = ("bleu", "chrf")
    options: ClassVar[tuple[str, ...]] = (*EncoderDecoderTask.options, "--bleu-tokenizer")
    runtime = "compressor.runtime:Translator"
    pipeline_tag = "translation"
    usage = 'print(model.translate(["First sentence.", "Second one."]))'
    answers = "translations"


TASK = Translation()
