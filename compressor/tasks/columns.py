"""Which columns of a table hold what: those that options name, else those whose names say it.

A table that leaves it open is refused, with the options to give. Columns are taken by their place
where there are two without names, or a text and a label, which is checked.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from compressor.errors import CompressWarning, InputError
from compressor.tasks.rows import ColumnNames, Direction, Pairs, flag_of
from compressor.tasks.tables import RowTable, column_missing, quoted

# First and second texts as data sets name them: GLUE, SNLI and its relatives, PAWS, SICK, BoolQ,
# and collections of queries. Names of columns are compared in lower case.
PAIRS = (
    ("sentence1", "sentence2"), ("sentence_a", "sentence_b"), ("text1", "text2"),
    ("text_a", "text_b"), ("text", "text_pair"), ("question1", "question2"),
    ("premise", "hypothesis"), ("claim", "evidence"), ("#1 string", "#2 string"),
    ("question", "sentence"), ("question", "answer"), ("question", "context"),
    ("question", "passage"), ("query", "text"), ("query", "passage"), ("query", "document"),
)  # fmt: skip
# Further columns of texts: the text of a row if there is no other.
_OTHER_TEXTS = (
    "abstract", "article", "aspect", "body", "comment", "content", "description", "dialogue",
    "headline", "message", "pair", "reply", "response", "review", "subject", "summary", "title",
    "tweet", "utterance",
)  # fmt: skip
_TEXTS = {*_OTHER_TEXTS, *(name for pair in PAIRS for name in pair)}
# Of labels, numbers and relevances: the first before the others.
LABELS = ("label", "labels", "gold_label", "is_duplicate", "quality", "category", "class", "intent")
SCORES = ("score", "label", "similarity", "similarity_score", "relatedness_score")
RELEVANCES = ("label", "relevance")
# Texts and their translations or summaries.
SOURCES_AND_TARGETS = (
    ("source", "target"), ("source_text", "target_text"), ("src", "tgt"), ("src", "trg"),
    ("src_text", "tgt_text"), ("input", "output"), ("original", "translation"),
    ("article", "abstract"), ("article", "highlights"), ("article", "summary"),
    ("content", "summary"), ("description", "abstract"), ("dialogue", "summary"),
    ("document", "summary"), ("report", "summary"), ("text", "summary"),
    ("transcript", "summary"),
)  # fmt: skip
_WORDS = ("tokens", "words")
_TAGS = ("tags", "ner_tags", "pos_tags", "chunk_tags", "labels", "upos")
_ID = re.compile(r"(.*[ _-]|pair|prompt|u|gu|q)?(id|index|idx)\d*|(unnamed: \d+)?")
_WORDS_OF_TEXT = re.compile(r"[^\W\d_]{2,}\W* [^\W\d_]{2,}")
# Language, script and region of a code: en, eng_Latn, pt-BR.
_LANGUAGE = re.compile(r"([a-z]{2,3})(?:[_-]([a-z]{4}))?(?:[_-]([a-z]{2}|\d{3}))?")

# What columns hold, in messages.
TEXT = "text"
PAIR = "second text"
LABEL = "label"


def labelled(
    table: RowTable,
    named: ColumnNames,
    labels: Sequence[str],
    pairs: Pairs = "some",
    classes: Sequence[str] = (),
    needs_label: bool = True,
) -> dict[str, str | None]:
    """The columns of a text, of a second text if there is one, and of a label.

    Args:
        table: whose columns are read.
        named: those that options name; a text column that is named alone contains single texts.
        labels: usual names of the last.
        pairs: whether all rows, some or none are pairs of texts.
        needs_label: whether the rows have labels.
        classes: the checkpoint's labels: a column with the name of one does not hold them all.

    Raises:
        InputError: there is no column of a name, or the table leaves open which ones are meant.
    """
    _require(table, named)
    text, pair, label = map(named.get, ("text_column", "text_pair_column", "label_column"))
    free = [name for name in table.columns if name not in (text, pair, label)]
    if label is None:
        label = _known(free, labels)
        free = [name for name in free if name != label]
    if text is None or (pair is None and pairs == "all"):
        is_left = label is None and needs_label and len(free) == 2  # one of them is the label
        text, pair = _texts(table, free, text, pair, "none" if is_left else pairs)
    taken = {text, pair, *map(_folded, classes)}
    rest = [x for x in free if not (x in taken or _folded(x) in taken or _ID.fullmatch(_folded(x)))]
    if text is None and _is_unsplit(table.columns):
        raise _unclear_texts(table, pairs)
    if text is None and pair is None and pairs != "all" and len(rest) == len(table.columns):
        if len(rest) == 1 + needs_label:
            _warn_of_header(table, rest)
            text, label = [*rest, None][:2]
    elif len(rest) == 1:  # what is left is what is missing
        if text is None and pairs != "all":
            text = rest[0]
        elif pair is None and pairs == "all":
            pair = rest[0]
        elif label is None and needs_label:
            label = rest[0]
    if text is None or (pair is None and pairs == "all"):
        raise _unclear_texts(table, pairs)
    if label is None and needs_label:
        raise _unclear(table, "the label", "--label-column", 2)
    return {TEXT: text, PAIR: pair, LABEL: label}


def _texts(
    table: RowTable, free: Sequence[str], text: str | None, pair: str | None, pairs: Pairs
) -> tuple[str | None, str | None]:
    """Text and second text, of which one may be named; None where no usual name is free."""
    known = [name for name in free if _folded(name) in _TEXTS]
    if text is not None or pair is not None:
        partners = [x for x in known if (_folded(text or x), _folded(pair or x)) in PAIRS] or known
        if len(partners) > 1:
            raise _unclear_texts(table, pairs)
        other = only(partners)
        return text or other, pair or other
    found = [(a, b) for a in known for b in known if (_folded(a), _folded(b)) in PAIRS]
    if len(found) == 1 and pairs != "none":
        return found[0]
    if known and pairs != "none":  # another text may be the second one
        known += [name for name in free if name not in known and _has_words(table, name)]
    if len(known) > 1:
        raise _unclear_texts(table, pairs)
    return (None if pairs == "all" else only(known)), None


def _has_words(table: RowTable, column: str) -> bool:
    """Whether a column has texts of several words in the first rows, and no names of labels."""
    cells = [str(record.cells.get(column)) for record in table.sample]
    return "label" not in column.lower() and any(map(_WORDS_OF_TEXT.search, cells))


def _known(free: Sequence[str], usual: Sequence[str]) -> str | None:
    """The column with the first of some usual names, else the only one with another."""
    first = [name for name in free if _folded(name) == usual[0]]
    return only(first or [name for name in free if _folded(name) in usual])


def ranked(table: RowTable, named: ColumnNames) -> dict[str, str | None] | None:
    """The columns of queries, texts and labels, none of which an option names; None without."""
    free = {_folded(name): name for name in table.columns if name not in named.values()}
    seconds = [free[second] for first, second in PAIRS if first == "query" and second in free]
    if not {"query", LABEL} <= free.keys() or len(seconds) != 1:
        return None
    return {TEXT: free["query"], PAIR: seconds[0], LABEL: free[LABEL]}


def translated(table: RowTable, named: ColumnNames, languages: Direction) -> dict[str, str | None]:
    """The columns of a source, of no second text, and of a target: see `labelled`.

    Usual names say which, or those of the languages.

    Raises InputError as `labelled`.
    """
    _require(table, named)
    source, target = named.get("source_column"), named.get("target_column")
    if source is None or target is None:
        source, target = _source_and_target(table.columns, (source, target), languages)
    if source is None or target is None:
        known = f" (the model translates from {languages[0]} into {languages[1]})"
        raise _unclear(
            table,
            f"the source and which the target{known if all(languages) else ''}",
            "--source-column and --target-column",
            2,
        )
    return {"source": source, PAIR: None, "target": target}


def _source_and_target(columns: Sequence[str], named: Direction, languages: Direction) -> Direction:
    """Both, of which one may be named; where the other is not clear, as named."""
    found: set[Direction] = {
        (a, b) for a in columns for b in columns if (_folded(a), _folded(b)) in SOURCES_AND_TARGETS
    }
    source, target = (_of_language(columns, language) for language in languages)
    if source is not None and target is not None and source != target:
        found.add((source, target))
    fitting = [x for x in found if all(a in (None, b) for a, b in zip(named, x, strict=True))]
    if len(fitting) == 1:
        return fitting[0]
    rest = [name for name in columns if name not in named]
    if len(columns) == 2 and len(rest) == 1:  # one is named, and one is left
        return named[0] or rest[0], named[1] or rest[0]
    return ("1", "2") if list(columns) == ["1", "2"] else named


def one_side(table: RowTable, named: ColumnNames, languages: Direction, targets: bool) -> str:
    """The column of sources alone, or of `targets`; errors as `labelled`."""
    option, place = ("target_column", 1) if targets else ("source_column", 0)
    if option in named:
        _require(table, {option: named[option]})
        return named[option]
    usual = {pair[place] for pair in SOURCES_AND_TARGETS}
    found = [name for name in table.columns if _folded(name) in usual]
    language = _of_language(table.columns, languages[place])
    column = only(found) or language if not (found and language) else None
    column = column or only(table.columns)
    if column is None:
        raise _unclear(table, "the text", flag_of(option), 1)
    return column


def words_and_tags(table: RowTable, named: ColumnNames) -> dict[str, str | None]:
    """The columns of words and of their tags; errors as `labelled`."""
    _require(table, named)
    tags = named.get("label_column") or _known(table.columns, _TAGS)
    if tags is None:
        raise _unclear(table, "the tags", "--label-column", 2)
    return {"words": column_of_words(table, named), "tags": tags}


def column_of_words(table: RowTable, named: ColumnNames) -> str:
    """The column of words, or of texts of words; errors as `labelled`."""
    words = named.get("text_column") or _known(table.columns, (*_WORDS, "text", "sentence"))
    if words is None or words not in table.columns:
        raise _unclear(table, "the words", "--text-column", 1)
    return words


def only(names: Sequence[str]) -> str | None:
    """The one name of a list; None for none or several."""
    return names[0] if len(names) == 1 else None


def _of_language(columns: Sequence[str], language: str | None) -> str | None:
    """The column with the name of a language, `en` or `en_US` for `en`; None if not just one."""
    if language is None:
        return None
    # FLORES has `sentence_eng_Latn`.
    names = {name: _folded(name).removeprefix("sentence_") for name in columns}
    same = [name for name, code in names.items() if code == language.lower()]
    return only(same or [name for name, code in names.items() if _is_language(code, language)])


def are_turned(files: Sequence[str], languages: Direction) -> bool:
    """Whether the names of two files, as in `test.de`, say that the targets come first."""

    def says(file: str, language: str | None) -> bool:
        parts = Path(file).name.split(".")
        return language is not None and any(_is_language(part.lower(), language) for part in parts)

    first, second = ([says(file, language) for language in languages] for file in files)
    return first == [False, True] and second == [True, False]


def _is_language(name: str, language: str) -> bool:
    """Whether two codes mean the same, apart from a script or a region that only one has."""
    first, second = (_LANGUAGE.fullmatch(code.lower()) for code in (name, language))
    if first is None or second is None or first[1] != second[1]:
        return False
    parts = zip(first.groups(), second.groups(), strict=True)
    return all(a == b or {a, b} & {None, "xx"} for a, b in parts)  # mBART's XX is no region


def _is_unsplit(names: Sequence[str]) -> bool:
    """Whether it seems that other characters separate cells than the file's suffix says."""
    return len(names) == 1 and bool(set(names[0]) & {*",;\t"})


def _folded(name: str) -> str:
    return name.strip().lower()


def _require(table: RowTable, named: ColumnNames) -> None:
    for name in named.values():
        if name not in table.columns:
            raise column_missing(table.path, name, table.columns)


def _warn_of_header(table: RowTable, names: Sequence[str]) -> None:
    if table.has_header:
        warnings.warn(
            f"{table.path}: the first line ({quoted(names)}) was taken as the names of the "
            "columns; give --no-header if it is a row",
            CompressWarning,
            stacklevel=4,
        )


def _unclear_texts(table: RowTable, pairs: Pairs) -> InputError:
    if pairs == "none":
        return _unclear(table, "the text", "--text-column", 1)
    if pairs == "all":
        what = "the query and which the text"
        return _unclear(table, what, "--text-column and --text-pair-column", 1)
    return _unclear(
        table,
        "the text, and whether one is a second text",
        "--text-column, and for pairs --text-pair-column",
        1,
    )


def _unclear(table: RowTable, what: str, flags: str, least: int) -> InputError:
    names = table.columns
    if len(names) < least or _is_unsplit(names):
        return InputError(
            f"{table.path}:1: of columns there are {len(names)} ({quoted(names)}), and more are "
            "needed; separate cells as the file's suffix says",
            id="too-few-columns",
        )
    header = ", or --no-header if the first line is a row" if table.has_header else ""
    return InputError(
        f"{table.path}: its columns ({quoted(names)}) do not say which is {what}; give {flags}"
        f"{header}",
        id="columns-unclear",
    )
