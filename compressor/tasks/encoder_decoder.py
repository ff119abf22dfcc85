"""Texts that an encoder-decoder answers with texts: translation of sentences, and summarization."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from compressor.errors import InputError
from compressor.model.languages import languages, source_prefix, target_missing
from compressor.model.sublayers import Kind
from compressor.storage.text_files import format_suffix
from compressor.tasks.base import Predictor, Task, Timed
from compressor.tasks.batching import IGNORED, Example, encode_texts, model_inputs, pad
from compressor.tasks.columns import are_turned, one_side, translated
from compressor.tasks.rows import Pairs, Reading, Rows, RowText, RowTexts, Texts
from compressor.tasks.tables import (
    FORMATS,
    Record,
    filled_lines,
    names_alone,
    read_table,
    require_format,
    unfolded,
)
from compressor.tasks.tried import FirstRuns, Tried

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.runtime import Generator
    from compressor.tasks.base import Arrays
    from compressor.tasks.batching import Tensors


class EncoderDecoderTask(Task, Predictor):
    """Texts that are answered with texts; the loss is that of the teacher-forced references."""

    answers: ClassVar[str]  # what messages call the answers
    first_runs = FirstRuns(
        Tried(0.8, "BLEU", -0.60, (-1.07, -0.17), 12_595_200, "the bundled translator"),
        Tried(0.4, "BLEU", -0.72, (-1.34, -0.15), 12_595_200, "the bundled translator"),
    )
    auto_class = "AutoModelForSeq2SeqLM"
    columns = ("source_column", "target_column")
    inputs = ("source_column",)
    options: ClassVar[tuple[str, ...]] = (
        "--num-beams",
        "--target-length",
        "--source-text",
        "--target-text",
        "--keep-languages",
        "--candidates",
        "--distill-beams",
        "--source-language",
        "--target-language",
        "--prefix",
    )
    exporter = "compressor.export.translator:TranslatorGraphs"
    counted_tokens = "generated"
    learns_from_answers = True
    learning_rate = 1e-4
    text_learning_rate = 5e-4
    muon_on_text = True
    hidden_weight = 0.0

    @override
    def read_texts(self, spec: str, reading: Reading) -> RowTexts:
        """A table with a source and a target column, or `SOURCE,TARGET`, two text files."""
        files = _parallel_files(spec)
        if files is not None:
            if are_turned(files, reading.languages):
                raise InputError(
                    f"{spec}: by their names the first file is in {reading.languages[1]}, and the "
                    f"model translates from {reading.languages[0]}; give that first",
                    id="parallel-files-turned",
                )
            return RowTexts([*files], _parallel_rows(*files), read=lambda: "a text a line")
        require_format(spec, (*FORMATS, "two text files as SOURCE,TARGET"))
        table = unfolded(read_table(spec, reading.header, reading.quoted), "translation")
        columns = translated(table, reading.columns, reading.languages)
        return table.texts(columns, Record.text)

    @override
    def text_columns(
        self, where: str, names: Texts, reading: Reading, *, pairs: Pairs, targets: bool = False
    ) -> list[str]:
        table = names_alone(where, names)
        return [one_side(table, reading.columns, reading.languages, targets)]

    @override
    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """Encode sources and targets; the targets may be as long as the sources."""
        require_target_language(tokenizer)
        prefix = source_prefix(tokenizer)
        texts = [f"{prefix}{text}" for text in rows.sources]
        sources, source_cut = encode_texts(tokenizer, max_source_tokens, text=texts)
        targets, target_cut = encode_texts(tokenizer, max_source_tokens, text_target=rows.targets)
        ids = zip(sources["input_ids"], targets["input_ids"], strict=True)
        return [
            Example(row, source, target, truncated=source_cut[row] or target_cut[row])
            for row, (source, target) in enumerate(ids)
        ]

    @override
    def synthetic_example(self, row: int, sentence: Callable[[int], tuple[int, ...]]) -> Example:
        return Example(row, sentence(2 + row % 9), sentence(2 + row % 7))

    @override
    def source_example(self, row: int, source: tuple[int, ...], end: int) -> Example:
        # The decoder needs some input; what it computes from the end token is not used.
        return Example(row, source, (end,))

    @override
    def target_tokens(self, example: Example) -> int:
        return len(example.target)

    @override
    def tensors(self, examples: Sequence[Example], model: nn.Module) -> dict[str, Tensor]:
        """Make `decoder_input_ids` and `labels` [batch, target], -100 in labels at padding."""
        labels = pad([example.target for example in examples], IGNORED)
        # mBART moves its language code to the front, others put their start token there.
        shift: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if shift is not None:
            return {"decoder_input_ids": shift(labels), "labels": labels}
        # As M2M100's forward makes them: the start token, and all labels but the last.
        config: Any = model.config
        inputs = labels.roll(1, 1)
        inputs[:, 0] = config.decoder_start_token_id
        inputs = inputs.where(inputs != IGNORED, config.pad_token_id)
        return {"decoder_input_ids": inputs, "labels": labels}

    @override
    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Compute the teacher-forced model's next-token logits, [batch, target, vocabulary]."""
        return model(**model_inputs(batch), use_cache=False).logits

    @override
    def term_mask(self, batch: Tensors) -> Tensor:
        """Mark the real target tokens, [batch, target] bool."""
        return batch["labels"] != IGNORED

    @override
    def token_mask(self, batch: Tensors, kind: Kind) -> Tensor:
        """Mark real tokens: [batch, source] for the encoder's sublayers, else [batch, target]."""
        if kind.startswith("encoder"):
            return batch["attention_mask"].bool()
        return self.term_mask(batch)

    @override
    def predict(
        self, model: nn.Module, batch: Tensors, tokenizer: Any, num_beams: int | None = None
    ) -> list[str]:
        """Generate by `generate` with the model's settings, but never sampled; detokenized."""
        from compressor.model.generation import generate  # imports transformers

        tokens = generate(model, batch, num_beams=1 if num_beams is None else num_beams)
        return list(tokenizer.batch_decode(tokens, skip_special_tokens=True))

    @override
    def answer(
        self, runtime: Generator, sources: Texts, pairs: Texts | None = None, **settings: Any
    ) -> list[str]:
        return runtime.generate_texts(sources, **settings)

    @override
    def timed(
        self, runtime: Generator, batches: Sequence[Arrays], target_length: int | None
    ) -> Timed:
        """Let every row generate `target_length` tokens, by default the mean of the reference."""
        forced, origin = target_length, ""
        if forced is None:
            lengths = [len(row) for batch in batches for row in runtime.generate(batch)]
            forced = math.ceil(sum(lengths) / len(lengths))
            origin = f", the mean of the reference model's own {self.answers}"
        runtime.artifact.generation.with_length(forced)  # raises if it is too long
        text = f"; {forced} generated tokens for every row{origin}"
        return Timed({"forced_length": forced}, float(forced), text)


def require_target_language(tokenizer: Any) -> None:
    """Raise InputError if a multilingual tokenizer has no language to translate into."""
    if getattr(tokenizer, "tgt_lang", "") is None:
        raise target_missing("the checkpoint", sorted(languages(tokenizer)))


def _parallel_files(spec: str) -> tuple[str, str] | None:
    """The two files of `SOURCE,TARGET`; None if `spec` is one file."""
    if Path(spec).exists() or "," not in spec:
        return None
    commas = [index for index, character in enumerate(spec) if character == ","]
    splits = [(spec[:index].strip(), spec[index + 1 :].strip()) for index in commas]
    # A path may contain a comma itself: choose the split whose halves both exist.
    pair = next((pair for pair in splits if all(map(os.path.isfile, pair))), splits[0])
    for path in pair:
        if format_suffix(path) in FORMATS:
            raise InputError(
                f"{path} in {spec} is a table; give one table with both columns, or two plain "
                "text files with a text per line",
                id="table-as-parallel-file",
            )
    return pair


def _parallel_rows(source_path: str, target_path: str) -> Iterator[RowText]:
    """The lines of two files, line n of one with line n of the other."""
    pairs = zip_longest(filled_lines(source_path), filled_lines(target_path))
    for number, (source, target) in enumerate(pairs, 1):
        if source is None or target is None:
            paths = source_path, target_path
            longer, shorter = paths if target is None else paths[::-1]
            raise InputError(
                f"{longer}:{number}: {shorter} has no such line; line n of one file must belong to "
                "line n of the other",
                id="parallel-files-differ",
            )
        yield source, None, target


class Translation(EncoderDecoderTask):
    """Translation of sentences."""

    name = "translation"
    metrics = ("bleu", "chrf")
    long_source_words = 20
    options: ClassVar[tuple[str, ...]] = (*EncoderDecoderTask.options, "--bleu-tokenizer")
    runtime = "compressor.runtime:Translator"
    pipeline_tag = "translation"
    usage = 'print(model.translate(["First sentence.", "Second one."]))'
    answers = "translations"


class Summarization(EncoderDecoderTask):
    """Summaries of texts."""

    name = "summarization"
    # ROUGE-2 agrees best with people's judgments of systems (Owczarzak et al. 2012; Graham 2015),
    # and unlike ROUGE-Lsum does not change with line breaks, which models seldom write.
    metrics = ("rouge2", "rouge1", "rougelsum")
    runtime = "compressor.runtime:Generator"
    pipeline_tag = "summarization"
    usage = 'print(model.generate_texts(["A long text.", "Another one."]))'
    answers = "summaries"


TRANSLATION, SUMMARIZATION = Translation(), Summarization()
