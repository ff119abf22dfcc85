"""Which heads have a role, by what was counted of their attention.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress, product
from typing import Any

import numpy as np
from scipy.stats import binom

from compressor.report.facts import SIGNIFICANCE
from compressor.study.attention import Counts
from compressor.study.compare_scores import overlap_p
from compressor.study.quality import holm
from compressor.study.run import by_kind

ROLES = ("positional", "syntactic", "rare-word")
POSITIONAL = 0.9  # share at one relative position (Voita et al., section 5.1)
SYNTACTIC = 0.1  # accuracy above the best fixed offset (section 5.2.1), and significantly so
RARE = 0.5  # the paper gives no threshold; its rare-word heads have 50 to 66 % (section 5.3)
DIRECTIONS = ("dependent to head", "head to dependent")
Roles = dict[str, list[list[str]]]  # layer name -> for each head the list of its roles
Dependency = dict[str, Any]  # see `dependencies`


def dependencies(
    relations: Sequence[str], arcs: Counts, hits: Mapping[str, Counts]
) -> list[Dependency]:
    """How often heads attend along relations, against always choosing a fixed distance.

    Args:
        relations: see `arcs_of`.
        arcs: the result of `arcs_of`.
        hits: the result of `count_arcs`.

    Returns:
        For each `relation` and `direction` the number of `arcs`, `offset` (the distance that is
        right most often) and `baseline` (how often it is); by layer the `accuracy` of each head and
        `p_holm`, the probability that a binomial with the baseline's accuracy is right at least as
        often, corrected for all heads and dependencies.
    """
    rows: list[Dependency] = []
    for group, (relation, direction) in enumerate(product(relations, DIRECTIONS)):
        members = arcs[arcs[:, 3] == group]
        offsets, counts = np.unique(members[:, 2] - members[:, 1], return_counts=True)
        total, baseline = len(members), float(counts.max() / len(members))
        p_values = {x: binom.sf(right[group] - 1, total, baseline) for x, right in hits.items()}
        rows.append(
            {
                "relation": relation,
                "direction": direction,
                "arcs": total,
                "offset": int(offsets[counts.argmax()]),
                "baseline": baseline,
                "accuracy": {name: (right[group] / total).tolist() for name, right in hits.items()},
                "p_holm": p_values,
            }
        )
    every = [p for row in rows for values in row["p_holm"].values() for p in values]
    adjusted = iter(holm(every))
    for row in rows:
        layers = row["p_holm"].items()
        row["p_holm"] = {name: [next(adjusted) for _ in values] for name, values in layers}
    return rows


def heads_of(row: Dependency) -> list[tuple[str, int]]:
    """Layer name and number of every head."""
    return [(name, i) for name, values in row["accuracy"].items() for i in range(len(values))]


def gain(row: Dependency, name: str, head: int) -> float:
    """Accuracy of a head above that of the best fixed distance, as a share."""
    return float(row["accuracy"][name][head] - row["baseline"])


def is_syntactic(row: Dependency, name: str, head: int) -> bool:
    """Whether a head is clearly and significantly better than the best fixed distance.

    Args:
        row: counts of one relation in one direction.
        name: of the sublayer.
        head: its number.
    """
    is_clear = gain(row, name, head) >= SYNTACTIC
    return is_clear and bool(row["p_holm"][name][head] < SIGNIFICANCE)


def head_roles(
    positions: Mapping[str, Mapping[str, Any]], relations: Sequence[Dependency]
) -> Roles:
    """The roles of each head, by layer name, in the order of `ROLES`.

    Args:
        positions: the result of `count_positions`.
        relations: the result of `dependencies`.
    """
    roles: Roles = {}
    for name, counted in positions.items():
        # Rare tokens and relations are counted in the encoder alone.
        rare = counted.get("rare", [0.0] * len(counted["share"]))
        followed = [row for row in relations if name in row["accuracy"]]
        roles[name] = []
        for head, share in enumerate(counted["share"]):
            syntactic = any(is_syntactic(row, name, head) for row in followed)
            has = share >= POSITIONAL, syntactic, rare[head] >= RARE
            roles[name].append(list(compress(ROLES, has)))
    return roles


def survival(roles: Roles, kept: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    """The number of heads of each role that pruning has kept, compared with pruning at random.

    Within a kind of attention, because kinds lose different shares of their heads.

    Args:
        roles: of the dense model's heads.
        kept: layer name -> kept heads.

    Returns:
        For each `kind` and `role`, and for `any` role and `none`: the number of `heads`, how many
        of them were `kept`, how many are `expected` by chance, and `p`, the probability of as many
        or more by chance (hypergeometric).
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
                    "p": overlap_p(count_kept, total, count, total_kept),
                }
            )
    return rows
