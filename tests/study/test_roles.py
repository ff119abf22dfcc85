"""Roles of heads: CoNLL-U, words of tokens, and counts on attention whose roles are known."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from compressor.errors import InputError
from compressor.study.attention import NO_WORD, Sentence, arcs_of, count_arcs, count_positions
from compressor.study.conllu import read_conllu
from compressor.study.role_criteria import dependencies, head_roles, survival
from compressor.study.word_alignment import tokenize
from compressor.tasks import Example
from tests.helpers import toy
from tests.helpers.batches import labelled_batch, one_row
from tests.helpers.errors import raises
from tests.helpers.numpy_transformer import NumpyTransformer
from tests.helpers.stages import scoring
from tests.helpers.tiny import word_tokenizer

ARCHITECTURES = ("bert", "marian")  # those of all are compared in tests/importance


def conllu(*rows: str) -> str:
    """`1 form head relation [NoSpace]` as lines of a CoNLL-U file."""
    lines = []
    for row in rows:
        number, form, head, relation, *misc = row.split()
        cells = [number, form, "_", "_", "_", "_", head, relation, "_"]
        lines.append("\t".join([*cells, "SpaceAfter=No" if misc else "_"]))
    return "\n".join(lines) + "\n"


def words_of(sentence: Sentence) -> list[str]:
    starts = (0, *sentence.ends)
    return [sentence.text[a:b].strip() for a, b in zip(starts, sentence.ends, strict=False)]


def test_a_sentence_is_read_as_it_is_written(tmp_path):
    text = "# newdoc\n\n# text = x\n" + conllu(
        "1 Kim 2 nsubj:pass", "2-3 didn't _ _", "2 did 0 root", "3 n't 2 advmod",
        "3.1 gone _ _", "4 say 2 xcomp NoSpace", "5 . 2 punct NoSpace",
    )  # fmt: skip
    text += "\n\n" + conllu("1-2 im _ _", "1 in 3 case", "2 dem 3 det", "3 Haus 0 root NoSpace")
    (tmp_path / "a.conllu").write_text(text, encoding="utf-8")
    kim, house = read_conllu(str(tmp_path / "a.conllu"))
    assert kim.text == "Kim didn't say."
    assert words_of(kim) == ["Kim", "did", "n't", "say", "."]
    assert kim.arcs == ((0, 1, "nsubj"), (2, 1, "advmod"), (3, 1, "xcomp"), (4, 1, "punct"))
    assert (house.text, words_of(house)) == ("im Haus", ["im", "Haus"])
    assert house.arcs == ((0, 1, "case"), (0, 1, "det"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1\tw\n", "['1', 'w']"), (conllu("x w 0 root"), "'x'"), (conllu("1 w _ _"), "'_'"),
        (conllu("1 w 0 root", "3 w 1 obj"), "no word 2"),
        (conllu("1 w 0 root", "2 w 7 obj"), "no word 7"),
    ],
)  # fmt: skip
def test_malformed_sentences_are_errors_that_name_the_line(text, shown, tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(conllu("1 w 0 root") + "\n" + text, encoding="utf-8")
    with raises(InputError, "conllu-malformed") as caught:
        read_conllu(str(path))
    assert f"{path}: sentence 2 " in str(caught.value)
    assert shown in str(caught.value)


def plain(text: str, *words: str) -> Sentence:
    ends, at = [], 0
    for word in words:
        at = text.index(word, at) + len(word)
        ends.append(at)
    return Sentence(text, tuple(ends), ())


def test_tokens_of_a_fast_tokenizer_know_their_words():
    sentence = plain("w5 w7.w9", "w5", "w7", ".", "w9")
    (tokens,) = tokenize(word_tokenizer(), [sentence], 10)
    assert tokens.ids == (5, 7, 1, 9, 2)
    assert tokens.words == (0, 1, 2, 3, NO_WORD)
    # One token for two words, and a sentence that is too long: left out.
    assert tokenize(word_tokenizer(), [plain("w57", "w5", "7")], 10) == []
    assert tokenize(word_tokenizer(), [sentence], 4) == []


def test_pieces_of_a_marian_tokenizer_know_their_words(tmp_path):
    """Against the pieces themselves: those of a word spell it, in order."""
    from transformers import MarianTokenizer

    tokenizer = MarianTokenizer.from_pretrained(toy.marian_with_pieces(tmp_path / "m"))
    sentence = plain("w12 und w3w45.", "w12", "und", "w3", "w45", ".")
    (tokens,) = tokenize(tokenizer, [sentence], 99)
    assert tokens.ids == tuple(tokenizer(sentence.text)["input_ids"])
    assert tokens.words[-1] == NO_WORD  # the end of the sentence
    lengths = [len(piece.replace("▁", "")) for piece in tokenizer.tokenize(sentence.text)]
    letters = [i for i, word in enumerate(words_of(sentence)) for _ in word]
    assert list(tokens.words[:-1]) == [letters[sum(lengths[:i])] for i in range(len(lengths))]


def count(counted: dict[str, list], weights, ids, special, counts, common, causal) -> None:
    """To which tokens a head attends: weights [queries, keys] of one row, in a loop over tokens."""
    words = [i for i, token in enumerate(ids) if token not in special]
    least = min((counts[ids[i]] for i in words), default=0)
    rarest = [i for i in words if counts[ids[i]] == least]
    for q in words:
        keys = [k for k in words if k <= q or not causal]
        best = max(keys, key=lambda k: weights[q, k])
        counted["moves"].append(best - q)
        counted["possible"] += [k - q for k in keys]
        counted["special"].append(1 - sum(weights[q, k] for k in keys))
        if not any(ids[i] in common for i in rarest):
            counted["rare"].append(best in rarest)
            counted["chance"].append(len(rarest) / len(words))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_positions_and_rare_tokens(name: str):
    """Attention of the NumPy models, one row at a time, counted in a loop over tokens."""
    setup = scoring(name)
    batch = labelled_batch(setup.model, rows=5)
    special = frozenset({int(batch["input_ids"][0, 3]), int(batch["input_ids"][2, 0])})
    watched = [x for x in setup.layers if x.is_attention and x.kind != "cross"]
    counts = np.bincount(batch["input_ids"][batch["attention_mask"].bool()], minlength=60)
    reported = count_positions(replace(setup, batches=[batch], layers=watched), special, 3)
    words = [x for x in range(60) if counts[x] and x not in special]
    common = set(sorted(words, key=lambda x: -counts[x])[:3])
    expected = {(x.name, head): defaultdict(list) for x in watched for head in range(x.units)}
    for number in range(5):
        row = one_row(batch, number)
        model = NumpyTransformer(setup.model, row)
        model.logits()
        for (layer, head), counted in expected.items():
            decoder = layer.startswith("decoder")
            ids = row["decoder_input_ids" if decoder else "input_ids"][0].tolist()
            weights = model.probabilities[layer][head]
            count(counted, weights, ids, special, counts, common, decoder)
    for (layer, head), counted in expected.items():
        one, moves, possible = reported[layer], counted["moves"], counted["possible"]
        shares = {
            offset: moves.count(offset) / possible.count(offset)
            for offset in range(-5, 6)
            if 2 * possible.count(offset) >= len(moves)
        }
        assert one["tokens"] == len(moves)
        assert one["share"][head] == pytest.approx(max(shares.values()))
        assert shares[one["offset"][head]] == pytest.approx(max(shares.values()))
        assert one["special"][head] == pytest.approx(np.mean(counted["special"]), abs=1e-5)
        assert ("rare" in one) == layer.startswith("encoder")
        if "rare" in one:
            assert one["rare_tokens"] == len(counted["rare"])
            assert one["rare"][head] == pytest.approx(np.mean(counted["rare"]))
            assert one["rare_chance"] == pytest.approx(np.mean(counted["chance"]))


def parsed(rows: int, seed: int) -> list[Sentence]:
    """Sentences of 2 to 5 words of one or two tokens, each word hanging on another one."""
    rng, sentences = np.random.default_rng(seed), []
    for _ in range(rows):
        count = int(rng.integers(2, 6))
        words = [w for w in range(count) for _ in range(int(rng.integers(1, 3)))]
        arcs = [(w, (w + int(rng.integers(1, count))) % count, "obj") for w in range(count)]
        ids = tuple(int(i) for i in rng.integers(6, 60, len(words)))
        tokens = {"ids": (*ids, 2), "words": (*words, NO_WORD)}
        sentences.append(Sentence("", (), tuple(arcs), **tokens))
    return sentences


@pytest.mark.parametrize("from_word", ["last", "mean"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_syntactic_counts(name: str, from_word: str):
    """Attention of the NumPy models on each sentence alone, arc by arc."""
    setup, sentences = scoring(name), parsed(6, seed=3)
    target = (2,) if name == "marian" else (0,)
    examples = [Example(i, tokens.ids, target) for i, tokens in enumerate(sentences)]
    encoder = [layer for layer in setup.layers if layer.kind == "encoder_self"]
    batches = setup.task.batches(examples, setup.model, batch_tokens=None, batch_size=4)
    setup = replace(setup, layers=encoder, batches=batches)
    hits = count_arcs(setup, sentences, arcs_of(sentences, ["obj"]), 2, from_word)
    expected = [np.zeros((2, layer.units), dtype=int) for layer in encoder]
    for example, tokens in zip(examples, sentences, strict=True):
        row = setup.task.batches([example], setup.model)[0]
        model = NumpyTransformer(setup.model, row)
        model.logits()
        places = [[i for i, w in enumerate(tokens.words) if w == word] for word in range(5)]
        for layer, counts in zip(encoder, expected, strict=True):
            for head, weights in enumerate(model.probabilities[layer.name]):
                for dependent, above, _ in tokens.arcs:
                    for group, (q, wanted) in enumerate([(dependent, above), (above, dependent)]):
                        queries = places[q][-1:] if from_word == "last" else places[q]
                        words = [weights[np.ix_(queries, x)].max(1).mean() for x in places if x]
                        counts[group, head] += int(np.argmax(words)) == wanted
    for layer, counts in zip(encoder, expected, strict=True):
        np.testing.assert_array_equal(hits[layer.name], counts)


@pytest.mark.parametrize(
    ("ahead", "behind", "hits", "roles"),
    [
        (60, 40, [90, 60], [["syntactic"], []]),  # 30 points above
        (6, 4, [9, 6], [[], []]),  # as far above, but on few arcs: p = 0.19 for four tests
        (600, 400, [690, 710], [[], ["syntactic"]]),  # significant, but the first by 9 points alone
    ],
)
def test_heads_against_the_best_fixed_distance(ahead, behind, hits, roles):
    """Arcs to the next word, and some back; and the same arcs from head to dependent."""
    forward = [[0, 0, 1, 0]] * ahead + [[0, 3, 1, 0]] * behind
    arcs = np.array(forward + [[0, b, a, 1] for _, a, b, _ in forward])
    followed = dependencies(["obj"], arcs, {"encoder_self.0": np.array([hits, [0, 0]])})
    obj, back = followed
    total = ahead + behind
    assert (obj["arcs"], obj["offset"], obj["baseline"]) == (total, 1, 0.6)
    assert back["offset"] == -1
    assert obj["accuracy"] == {"encoder_self.0": [hit / total for hit in hits]}
    p = [stats.binomtest(hit, total, 0.6, alternative="greater").pvalue for hit in hits]
    assert obj["p_holm"]["encoder_self.0"][int(p[1] < p[0])] == pytest.approx(4 * min(p))
    positions = {"encoder_self.0": {"share": [0.0, 0.0]}}
    assert head_roles(positions, followed) == {"encoder_self.0": roles}
    positions = {"decoder_self.0": {"share": [0.95]}, "encoder_self.0": {"share": [0.0, 0.0]}}
    positions["encoder_self.0"]["rare"] = [0.2, 0.5]
    named = head_roles(positions, followed)
    assert named["decoder_self.0"] == [["positional"]]
    assert named["encoder_self.0"][1] == [*roles[1], "rare-word"]


def test_survival_of_roles_against_chance():
    """Hypergeometric by hand: 3 of 4 positional heads among 4 kept of 8."""
    layer = [["positional"]] * 3 + [[], [], ["syntactic"], ["positional", "syntactic"], []]
    table = survival({"encoder_self.0": layer}, {"encoder_self.0": [0, 1, 2, 7]})
    rows = {one["role"]: one for one in table}
    positional = rows["positional"]
    assert (positional["heads"], positional["kept"], positional["expected"]) == (4, 3, 2.0)
    assert positional["p"] == pytest.approx((4 * 4 + 1) / 70)  # C(4,3) C(4,1) + C(4,4) of C(8,4)
    assert [(rows[x]["heads"], rows[x]["kept"]) for x in ("any", "none")] == [(5, 3), (3, 1)]
