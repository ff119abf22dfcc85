"""Tags of texts against transformers' pipeline, those of words against its `word_ids`."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from compressor.errors import CompressWarning
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.runtime import TokenClassifier
from compressor.tasks import TASKS, Rows, require_task
from tests.helpers.heads import TAGS
from tests.helpers.runtime_artifacts import Exported, export, new_directory
from tests.helpers.taggers import KINDS, save_kind

tagging = TASKS["token-classification"]
# Known and unknown letters; scripts without spaces; a letter and its accent, letters that
# lower-casing or NFKC change the length of; punctuation, signs of several characters, markers.
PARTS = (
    "a", "ab", "abcd", "cdab", "j", "AB", "xyz", "\u5317", "\u4eac", "\u5317\u4eac", "\u2603",
    "\U0001f642", "\U0001f469\u200d\U0001f467", "\u00e9", "e\u0301", "\u0130", "\u00df", "\ufb01",
    "\u0e44\u0e17\u0e22", "\ud55c\uad6d\uc5b4", ",", ".", "-", "...", "[UNK]", "[SEP]", "\u200d",
    "\u3000", "\u00a0", "▁", "Ġ",
)  # fmt: skip
drawn = random.Random(7)
TEXTS = [
    "ab\u2603cd a\u2603 \u2603b", "a\u2603\u2603b\u2603", "xyz a xyz", " ab  cd",
    "a \u5317 \u4eac b",
    *(
        drawn.choice(["", " ", "  "])
        + "".join(drawn.choice(PARTS) + drawn.choice(["", " ", " ", "  "]) for _ in range(count))
        for count in (1, 2, 3, 5, 8, 13) * 4
    ),
]  # fmt: skip
SENTENCES = [
    ["a", "\u5317", "\u4eac", "b"], ["\u200d", "ab"], ["ab", "", "cd"], [], ["a"] * 70,
    *(
        ["".join(drawn.choices(PARTS, k=drawn.randint(1, 3))) for _ in range(count)]
        for count in (1, 2, 3, 5, 8) * 4
    ),
]  # fmt: skip


@cache
def exported(kind: str) -> Exported:
    directory = new_directory()
    return export(save_kind(directory / kind, kind), Mask.full, directory / "out")


@torch.no_grad()
def first_labels(made: Exported, words: list[str]) -> list[str]:
    """By PyTorch, each sentence alone; the label of each word's first token by `word_ids`."""
    inputs = made.tokenizer(
        [words], is_split_into_words=True, truncation=True, max_length=64, return_tensors="pt"
    )
    best = made.model(**inputs).logits[0].argmax(-1).tolist()
    numbers = inputs.word_ids(0)
    return [TAGS[best[numbers.index(i)]] if i in numbers else "O" for i in range(len(words))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_entities_are_those_of_the_pipeline(kind: str):
    """All texts in a few ragged batches here, each alone there; scores and characters, too."""
    made = exported(kind)
    pipeline: Any = transformers.pipeline(
        "token-classification", model=made.model, tokenizer=made.tokenizer, device="cpu",
        aggregation_strategy="first",
    )  # fmt: skip
    for text, found in zip(TEXTS, TokenClassifier(made.directory).tag(TEXTS), strict=True):
        wanted = pipeline(text) if text.strip() else []
        assert [(x.label, x.start, x.end) for x in found] == [
            (x["entity_group"], x["start"], x["end"]) for x in wanted
        ], text
        np.testing.assert_allclose(
            [x.score for x in found], [x["score"] for x in wanted], atol=1e-5, err_msg=text
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_words_have_the_label_of_their_first_token_by_word_ids(kind: str):
    """Also where that is a lone marker of the space; `evaluate` compares the same labels."""
    made = exported(kind)
    tagger = TokenClassifier(made.directory)
    wanted = [first_labels(made, words) for words in SENTENCES]
    with pytest.warns(UserWarning, match="texts were cut"):
        assert tagger.tag_words(SENTENCES) == wanted
    whole = [words for words in SENTENCES[5:] if not any(" " in word for word in words)]
    answers = tagging.answer(tagger, [" ".join(words) for words in whole])
    assert answers == [" ".join(first_labels(made, words)) for words in whole]


@pytest.mark.parametrize("kind", KINDS)
def test_labels_to_learn_are_at_the_first_tokens_by_word_ids(kind: str, tmp_path):
    made = open_checkpoint(str(save_kind(tmp_path, kind)))
    sentences = [words for words in SENTENCES if words and all(words)]
    targets = [[drawn.choice(TAGS) for _ in words] for words in sentences]
    sources = [" ".join(words) for words in sentences]
    rows = Rows(tagging.name, sources, None, list(map(" ".join, targets)), [], "", list(TAGS))
    examples = tagging.encode(rows, made.tokenizer, 24)
    for words, tags, example in zip(sentences, targets, examples, strict=True):
        inputs = made.tokenizer(words, is_split_into_words=True, truncation=True, max_length=24)
        numbers: list[Any] = inputs.word_ids()
        # As in `run_ner.py` of transformers.
        labels = [
            -100 if word is None or word == before else TAGS.index(tags[word])
            for word, before in zip(numbers, [None, *numbers], strict=False)
        ]
        assert list(example.source) == inputs["input_ids"]
        assert [label for label, _ in example.target] == labels


@pytest.mark.parametrize(("kind", "warned"), [("bytes", 0), ("bytes-without-space", 1)])
def test_words_that_get_other_tokens_than_in_a_text_are_warned_of(kind, warned, tmp_path, recwarn):
    opened = open_checkpoint(str(save_kind(tmp_path, kind)))
    ids = (opened.tokenizer(["ab", "ab"], is_split_into_words=True), opened.tokenizer("ab ab"))
    assert (ids[0]["input_ids"] != ids[1]["input_ids"]) == bool(warned)
    require_task(opened)
    shown = [x for x in recwarn if x.category is CompressWarning]
    assert len(shown) == warned
    assert all("add_prefix_space" in str(x.message) for x in shown)
