"""Classification of the words of a text; the label of a word is that of its first token.

Rows are sentences of words with a tag each: columns as in CoNLL, or JSONL with two lists.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from compressor.errors import CompressWarning, InputError, UsageError
from compressor.runtime.token_classifier import OUTSIDE, first_tokens, scheme_of, words_of
from compressor.tasks import tables
from compressor.tasks.batching import IGNORED, Example, chunks, encode_texts, require_offsets
from compressor.tasks.columns import column_of_words, words_and_tags
from compressor.tasks.encoder import LabelTask
from compressor.tasks.labels import Labels
from compressor.tasks.rows import Pairs, Reading, Rows, RowTexts, Texts
from compressor.tasks.tables import RowTable
from compressor.tasks.tried import MINILM, FirstRuns, Tried

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.runtime import TokenClassifier
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

COLUMN_FILES = (".conll", ".bio", ".iob", ".iob2", ".tsv", ".txt")
_DOCUMENT = "-DOCSTART-"  # a line of CoNLL-2003 between documents

Sentence = tuple[list[str], list[str]]  # words and their tags
# Labels of entities in other forms than `B-location`.
_PREFIXED_OTHERWISE = re.compile("[BIESLUMW][_/:.].+|[bieslumw][-_/:.].+|.+[-_/:.][BIESLUMW]")


class TokenClassification(LabelTask):
    """A label for each word; a row's target is the labels of its words, joined by spaces.

    `target` of an example contains for each token the label's number and the word's number; both
    are `IGNORED` for special tokens and for those that continue a word.
    """

    name = "token-classification"
    first_runs = FirstRuns(
        Tried(0.75, "entity F1", -0.99, (-1.96, -0.18), MINILM, "MiniLM-L6 and WNUT 2017")
    )
    auto_class = "AutoModelForTokenClassification"
    metrics = ("entity_f1", "entity_precision", "entity_recall", "token_accuracy")
    columns = ("text_column", "label_column")
    exporter = "compressor.export.encoder:TaggingGraphs"
    runtime = "compressor.runtime:TokenClassifier"
    pipeline_tag = "token-classification"
    usage = 'print(model.tag(["First text.", "Second one."]))'
    answers = "labels of tokens"
    head_on_tokens = True
    reads_words = True

    @override
    def metrics_of(self, rows: Rows) -> tuple[str, ...]:
        """Take the accuracy alone for labels without prefixes, such as parts of speech.

        seqeval takes the first letter of such a label for its prefix: it would see no `ORG` at all,
        as it sees no `O`.
        """
        names = rows.labels or sorted({tag for target in rows.targets for tag in target.split()})
        prefixed = any(read != ("I", label) for label, read in scheme_of(names).items())
        unseen = any(label[0] in "O." for label in names if label != "O")
        return self.metrics if prefixed and not unseen else ("token_accuracy",)

    @override
    def require(self, checkpoint: Checkpoint) -> None:
        """Check that labels are single words; other prefixes would make types of their own."""
        names = self.label_names(checkpoint.model.config)
        entities = [name for name in names if name not in ("O", "o")]
        wrong = [name for name in names if len(name.split()) != 1]
        if all(_PREFIXED_OTHERWISE.fullmatch(name) for name in entities):
            wrong += entities
        if wrong:
            raise InputError(
                f"{checkpoint.directory / 'config.json'}: the label {wrong[0]!r:.40} in id2label "
                "is not a single word, or has its prefix in another form than B-location; rename "
                "the labels",
                id="label-not-a-word",
            )
        _warn_of_other_tokens(checkpoint)

    @override
    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        return super().head(config, width)[1:]

    @override
    def read_texts(self, spec: str, reading: Reading) -> RowTexts:
        """Sentences, their words joined by spaces, and the tags of their words likewise."""
        known = Labels(reading.labels)
        read: Callable[[], str]
        if tables.require_format(spec, (tables.JSONL, *COLUMN_FILES)) == tables.JSONL:
            table = tables.read_table(spec)
            columns = words_and_tags(table, reading.columns)
            sentences = _sentences_of_lists(table, columns, known)
            read = partial(table.read, columns, known.said)
        elif reading.columns or not reading.header or reading.quoted is not None:
            raise UsageError(
                f"{spec} has a word and its tag in the first and last column, and no header; leave "
                "--text-column, --label-column, --no-header and --quoted out",
                id="columns-of-plain-text",
            )
        else:
            sentences = _sentences_of_columns(spec, known)
            read = partial(_read_of_columns, known)
        rows = ((" ".join(words), None, " ".join(tags)) for words, tags in sentences)
        return RowTexts([spec], rows, read=read)

    @override
    def text_columns(
        self, where: str, names: Texts, reading: Reading, *, pairs: Pairs, targets: bool = False
    ) -> list[str]:
        return [column_of_words(tables.names_alone(where, names), reading.columns)]

    @override
    def label_values(self, rows: Rows) -> list[list[int]]:
        """Take the label's number of each word; empty for a row without a target."""
        ids = {name: index for index, name in enumerate(rows.labels or ())}
        return [
            [ids[tag] for tag in target.split(" ")] if target else [] for target in rows.targets
        ]

    @override
    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """Encode words one by one; words beyond the most tokens have no label."""
        require_offsets(tokenizer)
        examples: list[Example] = []
        labels = self.label_values(rows)
        for chunk in chunks(rows.count):  # so that no more numbers of words are kept
            sentences = [words_of(text) for text in rows.sources[chunk]]
            encoded, cut = encode_texts(
                tokenizer, max_source_tokens, types=True, words=True, text=sentences
            )
            for row, word_labels in enumerate(labels[chunk]):
                ids = encoded["input_ids"][row]
                target = [(IGNORED, IGNORED)] * len(ids)
                for word, token in first_tokens(encoded["word_ids"][row]).items():
                    # A row without a target has label 0.
                    target[token] = (word_labels[word] if word_labels else 0, word)
                types = encoded["token_type_ids"][row]
                examples.append(Example(len(examples), ids, tuple(target), types, cut[row]))
        return examples

    @override
    def source_example(self, row: int, source: tuple[int, ...], end: int) -> Example:
        return Example(row, source, tuple((0, word) for word in range(len(source))))

    @override
    def label_tensor(self, examples: Sequence[Example]) -> Tensor:
        """[batch, tokens, 2]: the number of the label, and of the word."""
        import torch

        longest = max(len(example.target) for example in examples)
        labels = torch.full((len(examples), longest, 2), IGNORED)
        for line, example in zip(labels, examples, strict=True):
            line[: len(example.target)] = torch.tensor(example.target)
        return labels

    @override
    def classes(self, batch: Tensors) -> Tensor:
        return batch["labels"][..., 0]

    @override
    def loss_terms(self, batch: Tensors) -> int:
        return max(1, int(self.term_mask(batch).sum()))

    @override
    def term_mask(self, batch: Tensors) -> Tensor:
        """Mark the first token of each word, [batch, tokens] bool."""
        return self.classes(batch) != IGNORED

    @override
    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        """Label the words of each line up to the last that has a token; `O` without one."""
        names = self.label_names(model.config)
        answers = []
        lines = logits.argmax(-1).tolist(), batch["labels"][..., 1].tolist()
        for best, words in zip(*lines, strict=True):
            labels = [OUTSIDE] * max(0, max(words) + 1)
            for label, word in zip(best, words, strict=True):
                if word != IGNORED:
                    labels[word] = names[label]
            answers.append(" ".join(labels))
        return answers

    @override
    def read_logits(self, logits: Logits, attention_mask: NDArray[np.int64]) -> Logits:
        """Take the logits of real tokens, [tokens, labels]."""
        return logits[attention_mask.astype(bool)]

    @override
    def answer(
        self, runtime: TokenClassifier, sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        return [" ".join(labels) for labels in runtime.tag_words(list(map(words_of, sources)))]


def _warn_of_other_tokens(checkpoint: Checkpoint) -> None:
    """Warn where words that are given one by one get other tokens than in a text."""
    from compressor.model.modes import quiet_transformers

    tokenizer = checkpoint.tokenizer
    if not tokenizer.is_fast:
        return  # refused where rows are read
    with quiet_transformers():
        given, text = tokenizer(["a", "a"], is_split_into_words=True), tokenizer("a a")
    if given["input_ids"] != text["input_ids"]:
        warnings.warn(
            f"the tokenizer of {checkpoint.directory} gives words of rows, which are read one by "
            "one, other tokens than in a text, as with add_prefix_space=false; so does "
            "transformers where it trains with is_split_into_words, but a model that was trained "
            "on texts is measured wrongly: save its tokenizer with add_prefix_space=True",
            CompressWarning,
            stacklevel=2,
        )


def _read_of_columns(labels: Labels) -> str:
    parts = ("words in the first column, tags in the last", labels.said())
    return "; ".join(filter(None, parts))


def _sentences_of_columns(path: str, labels: Labels) -> Iterator[Sentence]:
    """Sentences between empty lines; a word is the first cell of its line, its tag the last."""
    words: list[str] = []
    tags: list[str] = []
    width = 0
    for number, line in enumerate(chain(tables.read_lines(path), [""]), 1):
        if line.startswith(_DOCUMENT) or not line.strip(" \t"):
            if words:
                yield words, tags
                words, tags = [], []
            continue
        where = f"{path}:{number}"
        # Other white space, such as a no-break space, is part of a word.
        parts = line.split("\t") if "\t" in line else filter(None, line.split(" "))
        cells = [part.strip(" ") for part in parts]
        width = width or len(cells)
        if len(cells) < 2 or len(cells) != width:
            wanted = "a word and its tag" if width < 2 else f"the {width} of the lines before"
            raise InputError(
                f"{where}: the number of columns is {len(cells)}; give {wanted}, and an empty line "
                "between sentences",
                id="cell-count-differs",
            )
        word, tag = cells[0], cells[-1]
        if word[:1] == word[-1:] == '"' and '""' in word[1:-1]:
            raise InputError(
                f"{where}: the word {word[:40]!r} seems to be quoted as in CSV, and words in such "
                "files are as they stand; write them without quoting, or as .jsonl",
                id="not-a-word",
            )
        words.append(_single_word(word, where))
        tags.append(labels.name_of(_single_word(tag, where), where))


def _sentences_of_lists(
    table: RowTable, columns: Mapping[str, str | None], labels: Labels
) -> Iterator[Sentence]:
    """A list of words and a list of tags in each object."""
    names = [str(name) for name in columns.values()]
    for record in table.records:
        words, tags = (record.cells.get(name) for name in names)
        if not (isinstance(words, list) and isinstance(tags, list) and 0 < len(words) == len(tags)):
            raise InputError(
                f"{record.where}: {names[0]!r} and {names[1]!r} are not two lists of the same "
                "length; give one tag for each word",
                id="tags-do-not-match-words",
            )
        numbered = [str(tag) if type(tag) is int else tag for tag in tags]
        yield (
            [_single_word(word, record.where) for word in words],
            [labels.name_of(_single_word(tag, record.where), record.where) for tag in numbered],
        )


def _single_word(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or any(x in value for x in " \t\r\n"):
        raise InputError(
            f"{where}: {value!r:.60} is not a single word; give words, of names each part, and a "
            "tag for each",
            id="not-a-word",
        )
    return value


TOKEN_CLASSIFICATION = TokenClassification()
