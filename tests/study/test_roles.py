"""Roles of heads: CoNLL-U, words of tokens, and counts on attention whose roles are known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
from tests.helpers import toy
from tests.helpers.batches import labelled_batch, one_row
from tests.helpers.conllu import conllu
from tests.helpers.errors import raises
from tests.helpers.numpy_transformer import NumpyTransformer
from tests.helpers.stages import scoring
from tests.helpers.tiny import BUILDERS, TRANSLATORS, word_tokenizer


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


def test_a_file_without_sentences_is_an_error(tmp_path):
    with raises(InputError, "conllu-without-sentences"):
        read_conllu(written(tmp_path / "a.conllu", ""))


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


def test_pieces_of_a_marian_tokenizer_know_their_words(tmp_path):
    """Against the pieces themselves: those of a word spell it, in order."""
    from transformers import MarianTokenizer

    tokenizer = MarianTokenizer.from_pretrained(toy.marian_with_pieces(tmp_path / "m"))
    sentence = plain("w12 und w3w45.", "w12", "und", "w3", "w45", ".")
    (found,), _ = tokenize(tokenizer, [sentence], 99)
    assert found.ids == tuple(tokenizer(sentence.text)["input_ids"])
    assert found.words[-1] == NO_WORD  # the end of the sentence
    assert list(found.words[:-1]) == sorted(found.words[:-1])
    pieces = tokenizer.tokenize(sentence.text)
    starts, at = [], 0
    for piece in pieces:
        starts.append(at)
        at += len(piece.replace("▁", ""))
    letters = [i for i, word in enumerate(sentence.words) for _ in word]
    assert list(found.words[:-1]) == [letters[start] for start in starts]


@dataclass
class Counted:
    """What a head does, counted token by token."""

    moves: list[int] = field(default_factory=list)
    possible: list[int] = field(default_factory=list)
    rare: list[bool] = field(default_factory=list)
    special: list[float] = field(default_factory=list)
    blind: list[float] = field(default_factory=list)

    def share(self, offset: int) -> float:
        there = self.possible.count(offset)
        return self.moves.count(offset) / there if 2 * there >= len(self.moves) and there else 0.0


def count_by_hand(weights, ids, special, counts, common, causal=False, found=None) -> Counted:
    """One head on one row without padding: weights [queries, keys], a loop over tokens."""
    found = found or Counted()
    words = [i for i, token in enumerate(ids) if token not in special]
    least = min((counts[ids[i]] for i in words), default=0)
    rarest = [i for i in words if counts[ids[i]] == least]
    for q in words:
        keys = [k for k in words if k <= q or not causal]
        best = max(keys, key=lambda k: weights[q, k])
        found.moves.append(best - q)
        found.possible += [k - q for k in keys]
        found.special.append(1 - sum(weights[q, k] for k in keys))
        if not any(ids[i] in common for i in rarest):
            found.rare.append(best in rarest)
            found.blind.append(len(rarest) / len(words))
    return found


def assert_counted(found: dict, head: int, expected: Counted) -> None:
    assert found["tokens"] == len(expected.moves)
    shares = {offset: expected.share(offset) for offset in range(-5, 6)}
    assert found["share"][head] == pytest.approx(max(shares.values()))
    assert shares[found["offset"][head]] == pytest.approx(max(shares.values()))
    assert found["special"][head] == pytest.approx(np.mean(expected.special), abs=1e-5)
    if "rare" in found:
        assert found["rare_tokens"] == len(expected.rare)
        assert found["rare"][head] == pytest.approx(np.mean(expected.rare))
        assert found["rare_chance"] == pytest.approx(np.mean(expected.blind))


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


@pytest.mark.parametrize("name", BUILDERS)
def test_positions_and_rare_tokens_of_every_architecture(name: str):
    """Attention of the NumPy models, one row at a time, counted in a loop over tokens."""
    setup = scoring(name)
    batch = labelled_batch(setup.model, rows=5)
    special = frozenset({int(batch["input_ids"][0, 3]), int(batch["input_ids"][2, 0])})
    attention = [layer for layer in setup.layers if layer.is_attention]
    setup = replace(setup, batches=[batch], layers=attention)
    counts = np.bincount(batch["input_ids"][batch["attention_mask"].bool()], minlength=60)
    found = count_positions(setup, special, 3)
    assert set(found) == {layer.name for layer in setup.layers if layer.kind != "cross"}
    common, expected = set(rarity([batch], 60, 3, special)[1].tolist()), {}
    for number in range(5):
        row = one_row(batch, number)
        model = NumpyTransformer(setup.model, row)
        model.logits()
        for layer in setup.layers:
            decoder = layer.kind == "decoder_self"
            ids = row["decoder_input_ids" if decoder else "input_ids"][0].tolist()
            for head in range(layer.units):
                weights = model.probabilities[layer.name][head]
                key = layer.name, head
                if layer.kind != "cross":
                    expected[key] = count_by_hand(
                        weights, ids, special, counts, common, decoder, expected.get(key)
                    )
    for (layer, head), counted in expected.items():
        assert_counted(found[layer], head, counted)
    assert "rare" in found["encoder_self.0"]
    assert all("rare" not in one for layer, one in found.items() if "decoder" in layer)


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


@pytest.mark.parametrize("from_word", ["last", "mean"])
@pytest.mark.parametrize("name", BUILDERS)
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


def test_a_head_far_above_on_a_handful_of_arcs_is_not_syntactic():
    """Nine right of ten where six would be: 30 points above, but p = 0.09 for two heads."""
    arcs = np.array([[0, 1, 0]] * 6 + [[3, 1, 0]] * 4)
    hits = {"encoder_self.0": np.array([[9, 6]])}
    (few,) = role_criteria.dependencies([("obj", role_criteria.DIRECTIONS[0])], arcs, hits)
    assert few.p_holm["encoder_self.0"][0] == pytest.approx(0.093, abs=0.001)
    positions = {"encoder_self.0": {"share": [0.0, 0.0]}}
    assert role_criteria.head_roles(positions, [few]) == {"encoder_self.0": [[], []]}


def test_a_head_a_little_above_is_not_syntactic_however_significant():
    arcs = np.array([[0, 1, 0]] * 600 + [[3, 1, 0]] * 400)
    hits = {"encoder_self.0": np.array([[690, 710]])}
    (many,) = role_criteria.dependencies([("obj", role_criteria.DIRECTIONS[0])], arcs, hits)
    assert max(many.p_holm["encoder_self.0"]) < 0.001
    positions = {"encoder_self.0": {"share": [0.0, 0.0]}}
    assert role_criteria.head_roles(positions, [many]) == {"encoder_self.0": [[], ["syntactic"]]}


def test_relations_are_counted_the_papers_first():
    """Those that occur, never punctuation."""
    names = ["obj"] * 2 + ["det"] * 100 + ["acl"] * 99 + ["punct"] * 200
    arcs = tuple((0, 1, name) for name in names)
    found = role_criteria.relation_counts([Tokens(plain("a b", "a", "b", arcs=arcs), (), ())])
    assert list(found.items()) == [("obj", 2), ("acl", 99), ("det", 100)]


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
