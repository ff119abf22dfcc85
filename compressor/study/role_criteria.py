"""Which counts of `patterns` make a head positional, syntactic or a rare-word head.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from compressor.model.sublayers import kind_of
from compressor.study.statistics import ALPHA, holm
from compressor.study.word_alignment import Tokens

ROLES = ("positional", "syntactic", "rare-word")
POSITIONAL = 0.9  # share at one relative position (Voita et al., section 5.1)
SYNTACTIC = 0.1  # accuracy above the best fixed offset (section 5.2.1), and significantly so
# The paper gives no threshold; its rare-word heads attend to the least frequent token in 50 to 66 %
# of the cases (section 5.3).
RARE = 0.5
# Sentences whose least frequent token is among so many most frequent ones are left out.
COMMON = 500
RELATIONS = ("nsubj", "obj", "amod", "advmod")  # those of the paper
MINIMUM_ARCS = 100  # on fewer arcs one of many heads is far above the baseline by chance
NOT_SYNTAX = ("punct",)
DIRECTIONS = ("dependent to head", "head to dependent")

Facts = dict[str, Any]


def relation_counts(sentences: Sequence[Tokens]) -> dict[str, int]:
    """Number of arcs of each syntactic relation: the paper's relations first, then by name."""
    counts = Counter(arc[2] for tokens in sentences for arc in tokens.sentence.arcs)
    others = sorted(set(counts).difference(RELATIONS, NOT_SYNTAX))
    return {name: counts[name] for name in (*RELATIONS, *others) if counts[name]}


def relations(
    groups: Sequence[tuple[str, str]], arcs: np.ndarray, hits: dict[str, np.ndarray]
) -> list[Facts]:
    """Accuracy of every head on every relation, against always choosing a fixed distance.

    Args:
        groups: relation and direction of each group.
        arcs: [arcs, (from word, to word, group)].
        hits: layer name -> [groups, heads], how often a head attended to the right word.

    Returns:
        For each group `relation`, `direction`, `arcs` (their number), `offset` and `baseline` (the
        distance that is right most often, and how often), and by layer name `accuracy` and
        `p_holm`: the probability that a binomial with the baseline's accuracy is right at least as
        often, corrected for all heads and groups.
    """
    from scipy.stats import binom

    uncorrected: list[Facts] = []
    p_values: list[float] = []
    for group, (relation, direction) in enumerate(groups):
        rows = arcs[arcs[:, 2] == group]
        offsets, counts = np.unique(rows[:, 1] - rows[:, 0], return_counts=True)
        best = int(counts.argmax())
        baseline = float(counts[best] / len(rows))
        for by_head in hits.values():
            p_values += binom.sf(by_head[group] - 1, len(rows), baseline).tolist()
        uncorrected.append(
            {
                "relation": relation,
                "direction": direction,
                "arcs": len(rows),
                "offset": int(offsets[best]),
                "baseline": baseline,
                "accuracy": {n: (h[group] / len(rows)).tolist() for n, h in hits.items()},
            }
        )
    adjusted = iter(holm(p_values))  # in the order in which the p-values were appended

    def p_holm(accuracy: dict[str, list[float]]) -> dict[str, list[float]]:
        return {name: [next(adjusted) for _ in by_head] for name, by_head in accuracy.items()}

    return [one | {"p_holm": p_holm(one["accuracy"])} for one in uncorrected]


def is_syntactic(one: Facts, name: str, head: int) -> bool:
    """Whether a head is clearly and significantly better than the best fixed distance.

    Args:
        one: an entry of `relations`.
        name: of a layer; layers that the entry does not have (decoders) have no syntactic heads.
    """
    if name not in one["accuracy"]:
        return False
    above = one["accuracy"][name][head] - one["baseline"]
    return bool(above >= SYNTACTIC and one["p_holm"][name][head] < ALPHA)


def head_roles(positions: Facts, by_relation: Sequence[Facts]) -> dict[str, list[list[str]]]:
    """The roles of each head, by layer name, in the order of `ROLES`.

    Args:
        positions: see `patterns.count_positions`.
        by_relation: see `relations`.
    """
    roles: dict[str, list[list[str]]] = {}
    for name, counted in positions.items():
        roles[name] = []
        for head, share in enumerate(counted["share"]):
            has = (
                share >= POSITIONAL,
                any(is_syntactic(one, name, head) for one in by_relation),
                counted.get("rare", [0.0] * (head + 1))[head] >= RARE,
            )
            roles[name].append([role for role, yes in zip(ROLES, has, strict=True) if yes])
    return roles


def survival(roles: dict[str, list[list[str]]], kept: dict[str, list[int]]) -> list[dict[str, Any]]:
    """How many heads of each role pruning has kept, compared with pruning at random.

    Within a kind of attention, because kinds lose different shares of their heads.

    Returns:
        For each kind and role, and for `any` role and `none`: the number of `heads`, how many of
        them were `kept`, how many are `expected` by chance, and `p`, the probability of at least as
        many by chance (hypergeometric).
    """
    from scipy.stats import hypergeom

    rows = []
    for kind in dict.fromkeys(kind_of(name) for name in roles):
        heads = [(n, h) for n in roles if kind_of(n) == kind for h in range(len(roles[n]))]
        left = {(name, head) for name, head in heads if head in kept[name]}
        for role in (*ROLES, "any", "none"):
            members = {key for key in heads if _has(roles[key[0]][key[1]], role)}
            stayed = len(members & left)
            rows.append(
                {
                    "kind": kind,
                    "role": role,
                    "heads": len(members),
                    "kept": stayed,
                    "kept_of_all": len(left),
                    "of_all": len(heads),
                    "expected": len(members) * len(left) / len(heads),
                    "p": float(hypergeom.sf(stayed - 1, len(heads), len(members), len(left))),
                }
            )
    return rows


def _has(roles: list[str], role: str) -> bool:
    if role in ("any", "none"):
        return bool(roles) == (role == "any")
    return role in roles
