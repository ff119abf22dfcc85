"""Roles of heads: CoNLL-U, words of tokens, and counts on attention whose roles are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from compressor.errors import InputError
from compressor.study import patterns, role_criteria
from compressor.study.conllu import Sentence, read_conllu
from compressor.study.patterns import arcs_of, count_arcs, count_positions, rarity
from compressor.study.word_alignment import NO_WORD, Tokens, tokenize
from compressor.tasks import Batch, Example
from tests.helpers.conllu import conllu
from tests.helpers.errors import raises
from tests.helpers.numpy_transformer import NumpyTransformer
from tests.helpers.stages import scoring
from tests.helpers.tiny import STACKS, TRANSLATORS, word_tokenizer


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_sentence_is_read_as_it_is_written(tmp_path):
    text = "# newdoc\n\n# text = x\n" + conllu(
        "1 Kim 2 nsubj:pass", "2-3 didn't _ _", "2 did 0 root", "3 n't 2 advmod",
        "3.1 gone _ _", "4 say 2 xcomp NoSpace", "5 . 2 punct NoSpace",
    )  # fmt: skip
    text += (
        "\n\n"
        + conllu("1 im _ _").replace("1\tim", "1-2\tim")
        + conllu("1 in 3 case", "2 dem 3 det", "3 Haus 0 root NoSpace")
    )
    kim, house = read_conllu(written(tmp_path / "a.conllu", text))
    assert kim.text == "Kim didn't say."
    assert kim.words == ("Kim", "did", "n't", "say", ".")
    assert [kim.text[s : s + len(w)] for s, w in zip(kim.starts, kim.words, strict=True)] == list(
        kim.words
    )
    assert kim.arcs == ((0, 1, "nsubj"), (2, 1, "advmod"), (3, 1, "xcomp"), (4, 1, "punct"))
    assert (house.text, house.words) == ("im Haus", ("im", "Haus"))
    assert house.arcs == ((0, 1, "case"), (0, 1, "det"))


@pytest.mark.parametrize(
    ("text", "id", "line"),
    [
        ("1\tw\n", "conllu-columns", 1),
        (conllu("x w 0 root"), "conllu-word-number", 1),
        (conllu("1 w 0 root", "3 w 1 obj"), "conllu-numbering", 1),
        (conllu("1 w 0 root", "2 w 7 obj"), "conllu-head-number", 2),
        (conllu("1 w _ _"), "conllu-head-number", 1),
    ],
)
def test_malformed_files_are_errors_that_name_the_line(text, id, line, tmp_path):
    path = written(tmp_path / "a.conllu", text)
    with raises(InputError, id) as caught:
        read_conllu(path)
    assert f"{path}:{line}:" in str(caught.value)


def plain(text: str, *words: str, arcs=()) -> Sentence:
    starts, at = [], 0
    for word in words:
        at = text.index(word, at)
        starts.append(at)
        at += len(word)
    return Sentence(text, tuple(starts), words, tuple(arcs))


def test_tokens_of_a_fast_tokenizer_know_their_words():
    sentence = plain("w5 w7.w9", "w5", "w7", ".", "w9")
    (found,), left_out = tokenize(word_tokenizer(), [sentence], 10)
    assert left_out == 0
    assert found.ids == (5, 7, 1, 9, 2)
    assert found.words == (0, 1, 2, 3, NO_WORD)
    # One token for two words, and a sentence that is too long: left out.
    assert tokenize(word_tokenizer(), [plain("w57", "w5", "7")], 10) == ([], 1)
    assert tokenize(word_tokenizer(), [sentence], 4) == ([], 1)


def test_roles_of_hand_made_attention(monkeypatch):
    """Head 0 looks one back, head 1 one ahead, head 2 at the rarest token, head 3 at the end."""
    ids = torch.tensor([[10, 11, 12, 40, 10, 2], [11, 41, 10, 2, 0, 0]])
    batch = Batch({"input_ids": ids, "attention_mask": (ids != 0).long()}, [0, 1])
    weights = torch.full((2, 4, 6, 6), 0.02)
    for q in range(6):
        weights[:, 0, q, max(q - 1, 0)] = 0.9
        weights[:, 1, q, min(q + 1, 5)] = 0.9
    weights[0, 2, :, 3] = weights[1, 2, :, 1] = 0.9
    weights[0, 3, :, 5] = weights[1, 3, :, 3] = 0.9
    weights[:, 3, :, 1] = 0.06
    setup = scoring("bert", [batch])
    layer = setup.layers[0]

    def visit_attention(scoring, visit):
        visit(layer, weights, batch["attention_mask"].bool()[:, None, None], batch)

    monkeypatch.setattr(patterns, "visit_attention", visit_attention)
    _, common = rarity([batch], 60, 2, {2})
    assert set(common.tolist()) == {10, 11}
    found = count_positions(replace(setup, layers=[layer]), {2}, 2)["encoder_self.0"]
    assert found["tokens"] == 8  # 5 and 3 words; the end is none
    assert (found["offset"][:2], found["share"][:2]) == ([-1, 1], [1.0, 1.0])
    assert found["rare"][2] == 1.0
    assert found["special"][3] > 0.85 > 0.2 > found["special"][0]
    roles_of = role_criteria.head_roles({"encoder_self.0": found}, [])["encoder_self.0"]
    assert roles_of == [["positional"], ["positional"], ["rare-word"], []]


def test_attention_between_words_of_two_tokens():
    """Three words of 2, 1 and 2 tokens around a special one; by hand."""
    words = torch.tensor([[0, 0, -1, 1, 2, 2]])
    weights = torch.arange(36.0).reshape(1, 1, 6, 6) / 100
    last = patterns.word_attention(weights, words, "last")[0, 0]
    torch.testing.assert_close(
        last, torch.tensor([[0.07, 0.09, 0.11], [0.19, 0.21, 0.23], [0.31, 0.33, 0.35]])
    )
    mean = patterns.word_attention(weights, words, "mean")[0, 0]
    torch.testing.assert_close(
        mean, torch.tensor([[0.04, 0.06, 0.08], [0.19, 0.21, 0.23], [0.28, 0.30, 0.32]])
    )


def parsed(rows: int, seed: int) -> list[Tokens]:
    """Sentences of 2 to 5 words of one or two tokens, each word hanging on another one."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(rows):
        count = int(rng.integers(2, 6))
        words = [w for w in range(count) for _ in range(int(rng.integers(1, 3)))]
        arcs = [(w, (w + int(rng.integers(1, count))) % count, "obj") for w in range(count)]
        sentence = Sentence("", (), tuple("abcde"[:count]), tuple(arcs))
        ids = tuple(int(i) for i in rng.integers(6, 60, len(words)))
        found.append(Tokens(sentence, (*ids, 2), (*words, NO_WORD)))
    return found


@pytest.mark.parametrize(
    ("name", "from_word"), [*((name, "last") for name in STACKS), ("marian", "mean")]
)
def test_syntactic_counts_of_every_architecture(name: str, from_word: str):
    """Attention of the NumPy models on each sentence alone, arc by arc."""
    setup, sentences = scoring(name), parsed(6, seed=3)
    target = (2,) if name in TRANSLATORS else (0,)
    examples = [Example(i, tokens.ids, target) for i, tokens in enumerate(sentences)]
    encoder = [layer for layer in setup.layers if layer.kind == "encoder_self"]
    batches = setup.task.batches(examples, setup.model, batch_tokens=None, batch_size=4)
    setup = replace(setup, layers=encoder, batches=batches)
    hits = count_arcs(setup, sentences, arcs_of(sentences, {"obj": 0}), 2, from_word)
    expected = {layer.name: np.zeros((2, layer.units), dtype=int) for layer in encoder}
    for example, tokens in zip(examples, sentences, strict=True):
        row = setup.task.batches([example], setup.model)[0]
        model = NumpyTransformer(setup.model, row)
        model.logits()
        places = [[i for i, w in enumerate(tokens.words) if w == word] for word in range(5)]
        for layer in encoder:
            for head, weights in enumerate(model.probabilities[layer.name]):
                for dependent, above, _ in tokens.sentence.arcs:
                    for group, (q, wanted) in enumerate([(dependent, above), (above, dependent)]):
                        queries = places[q][-1:] if from_word == "last" else places[q]
                        to = [
                            np.mean([weights[i, keys].max() for i in queries])
                            for keys in places[: len(tokens.sentence.words)]
                        ]
                        expected[layer.name][group, head] += int(np.argmax(to)) == wanted
    for layer, counted in expected.items():
        np.testing.assert_array_equal(hits[layer].numpy(), counted)


def test_relations_against_the_best_fixed_distance():
    """A hundred arcs, 60 of them one word ahead; a head with 90 right is 30 points above."""
    arcs = np.array([[0, 1, 0]] * 60 + [[3, 1, 0]] * 40 + [[5, 4, 1]] * 20)
    groups = [("obj", role_criteria.DIRECTIONS[0]), ("obj", role_criteria.DIRECTIONS[1])]
    obj, back = role_criteria.dependencies(
        groups, arcs, {"encoder_self.0": np.array([[90, 60], [20, 0]])}
    )
    assert (obj.arcs, obj.offset, obj.baseline) == (100, 1, 0.6)
    assert obj.accuracy == {"encoder_self.0": [0.9, 0.6]}
    assert (back.offset, back.baseline) == (-1, 1.0)
    p_value = stats.binomtest(90, 100, 0.6, alternative="greater").pvalue
    assert obj.p_holm["encoder_self.0"][0] == pytest.approx(4 * p_value)
    positions = {"encoder_self.0": {"share": [0.0, 0.95]}}
    found = role_criteria.head_roles(positions, [obj, back])
    assert found == {"encoder_self.0": [["syntactic"], ["positional"]]}


def test_survival_of_roles_against_chance():
    """Hypergeometric by hand: 3 of 4 positional heads among 4 kept of 8."""
    layer = [["positional"]] * 3 + [[], [], ["syntactic"], ["positional", "syntactic"], []]
    found = role_criteria.survival({"encoder_self.0": layer}, {"encoder_self.0": [0, 1, 2, 7]})
    rows = {one["role"]: one for one in found}
    positional = rows["positional"]
    assert (positional["heads"], positional["kept"], positional["expected"]) == (4, 3, 2.0)
    assert positional["p"] == pytest.approx((4 * 4 + 1) / 70)  # C(4,3) C(4,1) + C(4,4) of C(8,4)
    assert (rows["any"]["heads"], rows["any"]["kept"]) == (5, 3)
    assert (rows["none"]["heads"], rows["none"]["kept"]) == (3, 1)
