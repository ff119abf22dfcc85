"""Which counts of `patterns` make a head positional, syntactic or a rare-word head.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, hypergeom

from compressor.model.sublayers import kind_of
from compressor.report.facts import SIGNIFICANCE
from compressor.study.parsed_sentences import Tokens
from compressor.study.quality import holm

ROLES = ("positional", "syntactic", "rare-word")
POSITIONAL = 0.9  # share at one relative position (Voita et al., section 5.1)
SYNTACTIC = 0.1  # accuracy above the best fixed offset (section 5.2.1), and significantly so
# The paper gives no threshold; its rare-word heads attend to the least frequent token in 50 to 66 %
# of the cases (section 5.3).
RARE = 0.5
# Sentences are left out whose least frequent token is among this many most frequent ones.
COMMON = 500
RELATIONS = ("nsubj", "obj", "amod", "advmod")  # those of the paper
MINIMUM_ARCS = 100  # on fewer arcs one of many heads is far above the baseline by chance
NOT_SYNTAX = ("punct",)
DIRECTIONS = ("dependent to head", "head to dependent")

Roles = dict[str, list[list[str]]]  # layer name -> for each head the list of its roles


@dataclass(frozen=True)
class Dependencies:
    """How often heads attend along relations, against always choosing a fixed distance."""

    # `relation`, `direction`, number of `arcs`, `offset` (the distance that is right most often)
    # and `baseline` (how often it is).
    rows: list[dict[str, Any]]
    heads: list[tuple[str, int]]  # layer name and head of each column
    accuracy: NDArray[np.float64]  # [rows, heads]
    # [rows, heads]: the probability that a binomial with the baseline's accuracy is right at least
    # as often, corrected for all heads and rows.
    p_holm: NDArray[np.float64]

    @property
    def gain(self) -> NDArray[np.float64]:
        """[rows, heads]: how much more often a head is right than the best fixed distance."""
        return self.accuracy - _column(self.rows, "baseline")

    @property
    def syntactic(self) -> NDArray[np.bool_]:
        """[rows, heads]: heads clearly and significantly better than the best fixed distance."""
        return (self.gain >= SYNTACTIC) & (self.p_holm < SIGNIFICANCE)

    def to_json(self) -> list[dict[str, Any]]:
        """The rows, with `accuracy` and `p_holm` by layer."""
        columns: dict[str, list[int]] = {}
        for column, (name, _) in enumerate(self.heads):
            columns.setdefault(name, []).append(column)
        return [
            {
                **row,
                "accuracy": {name: accuracy[of].tolist() for name, of in columns.items()},
                "p_holm": {name: p_holm[of].tolist() for name, of in columns.items()},
            }
            for row, accuracy, p_holm in zip(self.rows, self.accuracy, self.p_holm, strict=True)
        ]


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    """A value of each row: [rows, 1]."""
    return np.array([row[name] for row in rows], dtype=np.float64).reshape(-1, 1)


def relation_counts(sentences: Sequence[Tokens]) -> dict[str, int]:
    """Number of arcs of each syntactic relation: the paper's relations first, then by name."""
    counts = Counter(arc[2] for tokens in sentences for arc in tokens.arcs)
    # Where punctuation hangs is a convention of the treebank, not syntax.
    others = sorted(set(counts).difference(RELATIONS, NOT_SYNTAX))
    return {name: counts[name] for name in (*RELATIONS, *others) if counts[name]}


def dependencies(
    relations: Sequence[str],
    heads: Sequence[tuple[str, int]],
    arcs: NDArray[np.int64],
    hits: NDArray[np.int64],
) -> Dependencies:
    """Accuracy of every head on every relation and direction.

    Args:
        heads: layer name and head of each column of `hits`.
        arcs: [arcs, (sentence, from word, to word, group)], see `patterns.arcs_of`.
        hits: [groups, heads], how often a head attended to the right word.
    """
    rows = []
    for group, (relation, direction) in enumerate(product(relations, DIRECTIONS)):
        members = arcs[arcs[:, 3] == group]
        offsets, counts = np.unique(members[:, 2] - members[:, 1], return_counts=True)
        rows.append(
            {
                "relation": relation,
                "direction": direction,
                "arcs": len(members),
                "offset": int(offsets[counts.argmax()]),
                "baseline": float(counts.max() / len(members)),
            }
        )
    total = _column(rows, "arcs")
    # At least as many hits as the head's, if each were one by the baseline's chance.
    p = binom.sf(hits - 1, total, _column(rows, "baseline"))
    # Over all heads and dependencies: a single one is enough for the role of a head.
    return Dependencies(rows, list(heads), hits / total, np.reshape(holm(p.ravel()), p.shape))


def head_roles(positions: Mapping[str, Mapping[str, Any]], followed: Dependencies) -> Roles:
    """The roles of each head by layer, in the order of `ROLES`; see `patterns.count_positions`."""
    columns = zip(followed.heads, followed.syntactic.T, strict=True)
    syntactic = {key for key, column in columns if column.any()}
    roles: Roles = {}
    for name, counted in positions.items():
        # Counted in the encoder alone, and only if a sentence has a rare token.
        rare = counted.get("rare", [0.0] * len(counted["share"]))
        roles[name] = []
        for head, share in enumerate(counted["share"]):
            # Decoders are not counted on dependencies.
            has = share >= POSITIONAL, (name, head) in syntactic, rare[head] >= RARE
            roles[name].append([role for role, yes in zip(ROLES, has, strict=True) if yes])
    return roles


def survival(roles: Roles, kept: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    """How many heads of each role pruning has kept, compared with pruning at random.

    Within a kind of attention, because kinds lose different shares of their heads.

    Returns:
        For each kind and role, and for `any` role and `none`: the number of `heads`, how many of
        them were `kept`, how many are `expected` by chance, and `p`, the probability of at least as
        many by chance (hypergeometric).
    """
    rows = []
    for kind in dict.fromkeys(kind_of(name) for name in roles):
        # Whether pruning kept a head, and its roles, `any` or `none` among them.
        heads = [
            (head in kept[name], {*has, "any" if has else "none"})
            for name in roles
            if kind_of(name) == kind
            for head, has in enumerate(roles[name])
        ]
        kept_of_all = sum(is_kept for is_kept, _ in heads)
        for role in (*ROLES, "any", "none"):
            members = [is_kept for is_kept, has in heads if role in has]
            rows.append(
                {
                    "kind": kind,
                    "role": role,
                    "heads": len(members),
                    "kept": sum(members),
                    "kept_of_all": kept_of_all,
                    "of_all": len(heads),
                    "expected": len(members) * kept_of_all / len(heads),
                    "p": float(
                        hypergeom.sf(sum(members) - 1, len(heads), len(members), kept_of_all)
                    ),
                }
            )
    return rows
