"""Which counts of `attention` make a head positional, syntactic or a rare-word head.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, hypergeom

from compressor.report.facts import SIGNIFICANCE
from compressor.study.output import by_kind
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
NOT_SYNTAX = ("punct",)  # where punctuation hangs is a convention of the treebank
DIRECTIONS = ("dependent to head", "head to dependent")

Roles = dict[str, list[list[str]]]  # layer name -> for each head the list of its roles
Dependency = Mapping[str, Any]  # see `dependencies`


def dependencies(
    relations: Sequence[str],
    heads: Sequence[tuple[str, int]],
    arcs: NDArray[np.int64],
    hits: NDArray[np.int64],
) -> list[dict[str, Any]]:
    """How often heads attend along relations, against always choosing a fixed distance.

    Args:
        heads: layer name and head of each column of `hits`.
        arcs: [arcs, (sentence, from word, to word, group)], see `attention.arcs_of`.
        hits: [groups, heads], how often a head attended to the right word.

    Returns:
        For each `relation` and `direction` the number of `arcs`, `offset` (the distance that is
        right most often) and `baseline` (how often it is); by layer the `accuracy` of each head and
        `p_holm`, the probability that a binomial with the baseline's accuracy is right at least as
        often, corrected for all heads and dependencies: a single one makes a head syntactic.
    """
    rows: list[dict[str, Any]] = []
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
    total, baseline = (
        np.array([row[name] for row in rows], dtype=np.float64).reshape(-1, 1)
        for name in ("arcs", "baseline")
    )
    p = binom.sf(hits - 1, total, baseline)
    numbers = {"accuracy": hits / total, "p_holm": np.reshape(holm(p.ravel()), p.shape)}
    columns: dict[str, list[int]] = {}
    for column, (name, _) in enumerate(heads):
        columns.setdefault(name, []).append(column)
    for key, values in numbers.items():
        for row, of_heads in zip(rows, values, strict=True):
            row[key] = {name: of_heads[of].tolist() for name, of in columns.items()}
    return rows


def heads_of(row: Dependency) -> list[tuple[str, int]]:
    """Layer name and number of every head."""
    return [(name, i) for name, values in row["accuracy"].items() for i in range(len(values))]


def gain(row: Dependency, name: str, head: int) -> float:
    """How much more often a head is right than the best fixed distance."""
    return float(row["accuracy"][name][head] - row["baseline"])


def is_syntactic(row: Dependency, name: str, head: int) -> bool:
    """Whether a head is clearly and significantly better than the best fixed distance."""
    is_clear = gain(row, name, head) >= SYNTACTIC
    return is_clear and bool(row["p_holm"][name][head] < SIGNIFICANCE)


def head_roles(
    positions: Mapping[str, Mapping[str, Any]], relations: Sequence[Dependency]
) -> Roles:
    """The roles of each head by layer, in the order of `ROLES`.

    Args:
        positions: of `attention.count_positions`.
        relations: of `dependencies`, which are counted in the encoder alone.
    """
    roles: Roles = {}
    for name, counted in positions.items():
        # Counted in the encoder alone, and only if a sentence has a rare token.
        rare = counted.get("rare", [0.0] * len(counted["share"]))
        followed = [row for row in relations if name in row["accuracy"]]
        roles[name] = []
        for head, share in enumerate(counted["share"]):
            syntactic = any(is_syntactic(row, name, head) for row in followed)
            has = share >= POSITIONAL, syntactic, rare[head] >= RARE
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
    for kind, names in by_kind(roles).items():
        # Whether pruning kept a head, and its roles, `any` or `none` among them.
        heads = [
            (head in kept[name], {*has, "any" if has else "none"})
            for name in names
            for head, has in enumerate(roles[name])
        ]
        total, total_kept = len(heads), sum(is_kept for is_kept, _ in heads)
        for role in (*ROLES, "any", "none"):
            members = [is_kept for is_kept, has in heads if role in has]
            count, count_kept = len(members), sum(members)
            rows.append(
                {
                    "kind": kind,
                    "role": role,
                    "heads": count,
                    "kept": count_kept,
                    "kept_of_all": total_kept,
                    "of_all": total,
                    "expected": count * total_kept / total,
                    "p": float(hypergeom.sf(count_kept - 1, total, count, total_kept)),
                }
            )
    return rows
