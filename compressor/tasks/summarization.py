"""Summarization of texts with an encoder-decoder model."""

from __future__ import annotations

from compressor.tasks.encoder_decoder import EncoderDecoderTask


class Summarization(EncoderDecoderTask):
    """Summaries of texts.

    ROUGE-2 is the main metric: variants of it agree best with people's judgments of systems
    (Owczarzak et al. 2012; Graham 2015), and unlike ROUGE-Lsum it does not change with line breaks,
    which references often have between sentences and models seldom write.
    """

    name = "summarization"
    metrics = ("rouge2", "rouge1", "rougelsum")
    runtime = "compressor.runtime:Generator"
    pipeline_tag = "summarization"
    usage = 'print(model.generate_texts(["A long text.", "Another one."]))'
    answers = "summaries"


TASK = Summarization()
