"""BLEU and chrF of detokenized texts, with the counts of sacreBLEU and its scores on all rows.

sacreBLEU turns each sentence into a few counts, and the score is a function of their sums. For a
bootstrap the counts are extracted once, and the two functions are evaluated here on a matrix of
sums; the tests compare them with sacreBLEU's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from compressor.errors import EnvironmentProblem, UsageError, did_you_mean
from compressor.evaluation.metric import Array, Labels, SumMetric, Texts
from compressor.evaluation.words import ENOUGH, HAN, HANGUL, KANA, UNSPACED, shares

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

DEFAULT = "13a"  # sacreBLEU's tokenizer of texts with spaces
_ROWS_PER_CHUNK = 2000  # of references whose n-grams sacreBLEU holds at once


class _SacreBleu(SumMetric):
    """Metrics that sacreBLEU computes."""

    # One random order and few rows suffice: a random reference has hardly any matches.
    random_orders, floor_rows = 1, 2_000

    @abstractmethod
    def implementation(self, references: Texts) -> Metric:
        """The metric object of sacreBLEU, with one reference per sentence."""

    @override
    def signature(self, labels: Labels) -> str:
        return str(self.implementation(["any"]).get_signature())

    def statistics(self, systems: Sequence[Texts], references: Texts) -> list[Array]:
        """The counts of sacreBLEU, in chunks, because it keeps the n-grams of all references."""
        tables: list[list[list[int]]] = [[] for _ in systems]
        for start in range(0, len(references), _ROWS_PER_CHUNK):
            rows = slice(start, start + _ROWS_PER_CHUNK)
            # With the references, which are tokenized once for all systems.
            metric = self.implementation(references[rows])
            for table, outputs in zip(tables, systems, strict=True):
                # Private, but sacreBLEU's own significance tests use it; our tests compare every
                # score with sacreBLEU's public functions.
                table.extend(metric._extract_corpus_statistics(outputs[rows], None))
        return [np.array(table, dtype=np.float64) for table in tables]

    @override
    def score(self, statistics: Array, counts: Array) -> float:
        sums = [int(total) for total in counts @ statistics]
        return float(self.implementation(["any"])._compute_score_from_stats(sums).score)


class Bleu(_SacreBleu):
    """Corpus BLEU (0-100), Papineni et al. 2002, as sacreBLEU computes it (Post 2018).

    For the default tokenizer, text without spaces is a single token.
    """

    name, label = "bleu", "BLEU"
    advice = "give another --bleu-tokenizer, more rows, or a model that is good at them"

    @override
    def implementation(self, references: Texts) -> Metric:
        from sacrebleu.metrics import BLEU

        return BLEU(references=[list(references)], tokenize=self.tokenizer or DEFAULT)

    def choose_tokenizer(self, references: Texts) -> tuple[str, str]:
        """The tokenizer of sacreBLEU for the scripts that have a tenth of the letters.

        `char` for several scripts without spaces, and if a package of the others is not installed.
        """
        share_of = shares(references)
        han_or_kana = share_of.get(HAN, 0.0) + share_of.get(KANA, 0.0)
        tokenizer_of = {script: "char" for script in share_of if script in UNSPACED}
        if HAN in share_of:
            tokenizer_of[HAN] = "zh"
        if KANA in share_of and share_of[KANA] >= ENOUGH * han_or_kana:
            tokenizer_of.pop(HAN, None)
            tokenizer_of[KANA] = "ja-mecab"
        if HANGUL in share_of:
            tokenizer_of[HANGUL] = "ko-mecab"
        if not tokenizer_of:
            return DEFAULT, ""
        names = set(tokenizer_of.values())
        name = names.pop() if len(names) == 1 else "char"
        why = " and ".join(f"{100 * share_of[x]:.0f}% {x}" for x in tokenizer_of)
        missing = _missing_package(name)
        if missing:
            why += f", and {name} needs {missing}"
            name = "char"
        return name, (
            f"{self.label} uses sacreBLEU's tokenizer {name}, since the references' letters are "
            f"{why}; choose another with --bleu-tokenizer"
        )

    @override
    def require_tokenizer(self, name: str) -> None:
        from sacrebleu.metrics import BLEU

        if name not in BLEU.TOKENIZERS:
            raise UsageError(
                f"--bleu-tokenizer {name}: sacreBLEU has no such tokenizer; choose from "
                f"{', '.join(BLEU.TOKENIZERS)}{did_you_mean(name, BLEU.TOKENIZERS)}",
                id="tokenizer-unknown",
            )
        missing = _missing_package(name)
        if missing:
            raise EnvironmentProblem(
                f"--bleu-tokenizer {name} needs {missing}; install it, or choose another",
                id="tokenizer-not-installed",
            )

    def unsmoothed(self, statistics: Array, counts: Array) -> Array:
        """Scores [resamples]; 0 if no n-gram of some length matches: smoothing alone scores."""
        sums = counts @ statistics
        return np.where((sums[:, 2:6] > 0).all(axis=1), self.from_sums(sums), 0.0)

    def from_sums(self, sums: Array) -> Array:
        """BLEU with sacreBLEU's default "exp" smoothing.

        Args:
            sums: [resamples, 10]: output length, reference length, 4 matches, 4 totals.

        Returns:
            [resamples].
        """
        output = sums[:, 0]
        reference = sums[:, 1]
        correct = sums[:, 2:6]
        total = sums[:, 6:10]
        missed = correct == 0
        # NIST smoothing: an order without a match counts 1/2 match, the next such order 1/4, etc.
        credit = np.where(missed, 0.5 ** np.cumsum(missed, axis=1), correct)
        logs = np.log(credit) - np.log(np.maximum(total, 1.0))
        penalty = np.minimum(0.0, 1.0 - reference / np.maximum(output, 1.0))
        score = 100.0 * np.exp(np.mean(logs, axis=1) + penalty)
        possible = correct.any(axis=1) & total.all(axis=1)
        return np.where(possible, score, 0.0)


class Chrf(_SacreBleu):
    """Corpus chrF (0-100), Popović 2015, with sacreBLEU's defaults.

    Recall counts twice, and orders without n-grams are left out (effective order).
    """

    name, label = "chrf", "chrF"

    @override
    def implementation(self, references: Texts) -> Metric:
        from sacrebleu.metrics import CHRF

        return CHRF(references=[list(references)])

    def from_sums(self, sums: Array) -> Array:
        """ChrF from counts of n-grams of characters.

        Args:
            sums: [resamples, 3 x orders]: per order n-grams of output and reference, matches.

        Returns:
            [resamples].
        """
        beta = 2.0  # weight of recall against precision
        output = sums[:, 0::3]
        reference = sums[:, 1::3]
        match = sums[:, 2::3]
        used = (output > 0) & (reference > 0)
        orders = np.maximum(used.sum(axis=1), 1)
        precision = np.where(used, match / np.maximum(output, 1.0), 0.0).sum(axis=1) / orders
        recall = np.where(used, match / np.maximum(reference, 1.0), 0.0).sum(axis=1) / orders
        weighted = beta**2 * precision + recall
        nothing = weighted == 0
        product = 100.0 * (1 + beta**2) * precision * recall
        return np.where(nothing, 0.0, product / np.where(nothing, 1, weighted))


def _missing_package(name: str) -> str:
    """Say what a tokenizer of sacreBLEU lacks; empty for nothing.

    Some tokenizers load a model from the internet on first use.
    """
    from sacrebleu.metrics import BLEU

    try:
        BLEU(tokenize=name)
    except (ImportError, RuntimeError, OSError) as error:
        extra = {"ja-mecab": "'sacrebleu[ja]'", "ko-mecab": "'sacrebleu[ko]'"}.get(name)
        if extra is not None:
            return f"a package that is not installed (`pip install {extra}`)"
        return f"something that is missing here ({' '.join(str(error).split())[:200]})"
    return ""
