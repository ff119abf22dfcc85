"""Which counts of `patterns` make a head positional, syntactic or a rare-word head.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import binom, hypergeom

from compressor.model.sublayers import kind_of
from compressor.study.statistics import ALPHA, holm
from compressor.study.word_alignment import Tokens

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
class Dependency:
    """How often heads attend along a relation, against always choosing a fixed distance.

    Args:
        arcs: their number.
        offset: the distance that is right most often, `baseline`: how often it is.
        accuracy: layer name -> of each head.
        p_holm: the probability that a binomial with the baseline's accuracy is right at least as
            often, corrected for all heads and dependencies.
    """

    relation: str
    direction: str
    arcs: int
    offset: int
    baseline: float
    accuracy: dict[str, list[float]]
    p_holm: dict[str, list[float]]

    def heads(self) -> Iterator[tuple[str, int]]:
        """Layer and number of every head."""
        for name, by_head in self.accuracy.items():
            yield from ((name, head) for head in range(len(by_head)))

    def gain(self, name: str, head: int) -> float:
        """How much more often a head is right than the best fixed distance."""
        return self.accuracy[name][head] - self.baseline

    def is_syntactic(self, name: str, head: int) -> bool:
        """Whether a head is clearly and significantly better than the best fixed distance.

        Args:
            name: of a layer; those that were not counted (decoders) have no syntactic heads.
        """
        if name not in self.accuracy:
            return False
        return self.gain(name, head) >= SYNTACTIC and self.p_holm[name][head] < ALPHA


@dataclass(frozen=True)
class HeadRoles:
    """What the heads of a model do.

    Args:
        positions: see `patterns.count_positions`.
    """

    positions: dict[str, dict[str, Any]]
    dependencies: list[Dependency]
    roles: Roles


def relation_counts(sentences: Sequence[Tokens]) -> dict[str, int]:
    """Number of arcs of each syntactic relation: the paper's relations first, then by name."""
    counts = Counter(arc[2] for tokens in sentences for arc in tokens.sentence.arcs)
    # Where punctuation hangs is a convention of the treebank, not syntax.
    others = sorted(set(counts).difference(RELATIONS, NOT_SYNTAX))
    return {name: counts[name] for name in (*RELATIONS, *others) if counts[name]}


def dependencies(
    groups: Sequence[tuple[str, str]], arcs: np.ndarray, hits: Mapping[str, np.ndarray]
) -> list[Dependency]:
    """Accuracy of every head on every relation and direction.

    Args:
        groups: relation and direction of each group.
        arcs: [arcs, (from word, to word, group)].
        hits: layer name -> [groups, heads], how often a head attended to the right word.
    """
    uncorrected: list[Dependency] = []
    for group, (relation, direction) in enumerate(groups):
        rows = arcs[arcs[:, 2] == group]
        offsets, counts = np.unique(rows[:, 1] - rows[:, 0], return_counts=True)
        best = int(counts.argmax())
        baseline = float(counts[best] / len(rows))
        uncorrected.append(
            Dependency(
                relation,
                direction,
                arcs=len(rows),
                offset=int(offsets[best]),
                baseline=baseline,
                accuracy={n: (h[group] / len(rows)).tolist() for n, h in hits.items()},
                # At least as many hits as the head's, if each were one by the baseline's chance.
                p_holm={
                    n: binom.sf(h[group] - 1, len(rows), baseline).tolist() for n, h in hits.items()
                },
            )
        )
    # Over all heads and dependencies: a single one is enough for the role of a head.
    adjusted = iter(holm([p for x in uncorrected for ps in x.p_holm.values() for p in ps]))
    return [
        replace(x, p_holm={n: [next(adjusted) for _ in ps] for n, ps in x.p_holm.items()})
        for x in uncorrected
    ]


def head_roles(positions: Mapping[str, Mapping[str, Any]], followed: Sequence[Dependency]) -> Roles:
    """The roles of each head, by layer name, in the order of `ROLES`.

    Args:
        positions: see `patterns.count_positions`.
        followed: see `dependencies`.
    """
    roles: Roles = {}
    for name, counted in positions.items():
        # Counted in the encoder alone, and only if a sentence has a rare token.
        rare = counted.get("rare", [0.0] * len(counted["share"]))
        roles[name] = []
        for head, share in enumerate(counted["share"]):
            has = (
                share >= POSITIONAL,
                any(one.is_syntactic(name, head) for one in followed),
                rare[head] >= RARE,
            )
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
        left = sum(is_kept for is_kept, _ in heads)
        for role in (*ROLES, "any", "none"):
            members = [is_kept for is_kept, has in heads if role in has]
            stayed = sum(members)
            rows.append(
                {
                    "kind": kind,
                    "role": role,
                    "heads": len(members),
                    "kept": stayed,
                    "kept_of_all": left,
                    "of_all": len(heads),
                    "expected": len(members) * left / len(heads),
                    "p": float(hypergeom.sf(stayed - 1, len(heads), len(members), left)),
                }
            )
    return rows
