"""The study of roles as sentences, tables, and a map of the heads."""

from __future__ import annotations

from typing import Any

from compressor.report import numbers
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, FAINT
from compressor.report.table import ReportTable
from compressor.study.job import Job
from compressor.study.output import Result, table
from compressor.study.plotting import MARKERS, head_panels
from compressor.study.role_criteria import MINIMUM_ARCS, RARE, ROLES, SYNTACTIC, is_syntactic

Facts = dict[str, Any]


def role_result(job: Job, data: Facts) -> Result:
    """The finished study."""
    some = any(roles for layer in data["heads_roles"].values() for roles in layer)
    tables = [_roles(data)] if some else []
    if data["relations"]:
        tables.append(_relations(data))
    if "pruned" in data:
        tables.insert(0, _survival(data))
    return Result(
        title=f"Roles of the heads of {job.checkpoint.name}",
        data=data,
        sentences=_sentences(data),
        tables=tables,
        details=[_all_heads(data)],
        draw=lambda: _figure(data),
    )


def _sentences(data: Facts) -> list[str]:
    heads = [roles for layer in data["heads_roles"].values() for roles in layer]
    counts = ", ".join(f"{sum(role in roles for roles in heads)} {role}" for role in ROLES)
    none = sum(not roles for roles in heads)
    sentences = [f"Of {len(heads)} self-attention heads: {counts}, {none} without a role."]
    sentences += _dependencies(data)
    rare = [one for one in data["positions"].values() if "rare" in one]
    sentences.append(
        f"Rare-word heads attend to the least frequent token in at least {RARE:.0%} of the cases; "
        f"a random choice does in {rare[0]['rare_chance']:.0%}."
        if rare
        else "Rare-word heads were not looked for: the least frequent token of every sentence is "
        f"among the {data['thresholds']['common']} most frequent ones; give more rows."
    )
    return sentences


def _dependencies(data: Facts) -> list[str]:
    """How many heads follow dependencies, and which relations were too rare to be tested."""
    if data["conllu"] is None:
        return ["Syntactic heads were not looked for: no --conllu FILE was given."]
    sentences = []
    if data["relations"]:
        pairs = [
            (one, name, head)
            for one in data["relations"]
            for name, by_head in one["accuracy"].items()
            for head in range(len(by_head))
        ]
        above = [
            (one, name, head)
            for one, name, head in pairs
            if one["accuracy"][name][head] - one["baseline"] >= SYNTACTIC
        ]
        sentences.append(
            f"Dependencies: {data['sentences']} sentences ({data['left_out']} left out). The "
            "weight on a word is the largest on one of its tokens, the weight from a word that of "
            f"{'its last token' if data['from_word'] == 'last' else 'the mean of its tokens'}. "
            f"{len(above)} of {len(pairs)} pairs of head and relation are 10 points above the best "
            f"fixed distance, {sum(is_syntactic(*pair) for pair in above)} of these significantly "
            "(Holm), which makes the head syntactic."
        )
    else:
        sentences.append(
            "Syntactic heads were not looked for: no relation is frequent enough; give more "
            "sentences."
        )
    if data["too_rare"]:
        names = ", ".join(f"{name} ({count})" for name, count in data["too_rare"].items())
        sentences.append(f"Relations too rare, below {MINIMUM_ARCS} arcs, and left out: {names}.")
    return sentences


def _best(data: Facts, name: str, head: int) -> Facts | None:
    """The relation in which a head is furthest above the baseline; None where it never is."""
    gains = [
        (one["accuracy"][name][head] - one["baseline"], one)
        for one in data["relations"]
        if name in one["accuracy"]
    ]
    gain, best = max(gains, key=lambda pair: pair[0], default=(0.0, None))
    return best if gain > 0 else None


def _cells(data: Facts, name: str, head: int) -> tuple[str, ...]:
    counted, best = data["positions"][name], _best(data, name, head)
    syntax = ("", "", "")
    if best is not None:
        direction = "→ head" if best["direction"].endswith("head") else "→ dependent"
        syntax = (
            f"{best['relation']} {direction}",
            f"{100 * best['accuracy'][name][head]:.0f}% ({100 * best['baseline']:.0f}%)",
            numbers.p_value(best["p_holm"][name][head]),
        )
    rare = f"{counted['rare'][head]:.0%}" if "rare" in counted else ""
    return (
        name,
        str(head),
        ", ".join(data["heads_roles"][name][head]),
        f"{counted['share'][head]:.0%} at {counted['offset'][head]:+d}",
        *syntax,
        rare,
        f"{counted['special'][head]:.0%}",
        _after(data, name, head),
    )


def _after(data: Facts, name: str, head: int) -> str:
    """Whether pruning kept a head, and its roles in the pruned model."""
    if "pruned" not in data:
        return ""
    kept = data["pruned"]["kept"][name]
    if head not in kept:
        return "removed"
    roles = data["pruned"]["heads_roles"][name][kept.index(head)]
    return "kept: " + (", ".join(roles) or "no role")


_TITLES = (
    "layer, head, roles, position, best relation, accuracy (baseline), p (Holm), rare, "
    "special tokens, after pruning"
)


def _head_table(data: Facts, caption: str, *, everything: bool) -> ReportTable:
    rows = [
        _cells(data, name, head)
        for name, layer in data["heads_roles"].items()
        for head, roles in enumerate(layer)
        if roles or everything
    ]
    titles = _TITLES if "pruned" in data else _TITLES.removesuffix(", after pruning")
    rows = rows if "pruned" in data else [row[:-1] for row in rows]
    return table(caption, titles, rows, texts=3)


def _roles(data: Facts) -> ReportTable:
    return _head_table(data, "Heads with a role.", everything=False)


def _all_heads(data: Facts) -> ReportTable:
    return _head_table(data, "All self-attention heads.", everything=True)


def _relations(data: Facts) -> ReportTable:
    rows = []
    for one in data["relations"]:
        name, head = max(
            ((name, head) for name, layer in one["accuracy"].items() for head in range(len(layer))),
            key=lambda key: one["accuracy"][key[0]][key[1]],
        )
        accuracy = one["accuracy"][name][head]
        syntactic = sum(
            is_syntactic(one, name, head)
            for name, layer in one["accuracy"].items()
            for head in range(len(layer))
        )
        rows.append(
            (
                one["relation"],
                one["direction"],
                f"{name} head {head}",
                str(one["arcs"]),
                f"{100 * accuracy:.1f}",
                f"{100 * one['baseline']:.1f} at {one['offset']:+d}",
                numbers.fixed(100 * (accuracy - one["baseline"]), 1, sign=True),
                numbers.p_value(one["p_holm"][name][head]),
                str(syntactic),
            )
        )
    return table(
        "Dependencies: the best head of each against the best fixed distance (in words), in "
        "percent; p of the difference, corrected for all heads and relations; how many heads are "
        "10 points above with p below 0.05.",
        "relation, direction, best head, arcs, accuracy, baseline, above, p (Holm), heads",
        rows,
        texts=3,
    )


def _survival(data: Facts) -> ReportTable:
    rows = [
        (
            kind_label(one["kind"]),
            {"any": "any role", "none": "no role"}.get(one["role"], one["role"]),
            str(one["heads"]),
            str(one["kept"]),
            numbers.fixed(one["expected"], 1),
            numbers.p_value(one["p"]) if one["heads"] else numbers.ABSENT,
        )
        for one in data["pruned"]["survival"]
    ]
    return table(
        "Heads that pruning has kept, by role; expected is the number if as many heads of the kind "
        "were kept at random, p the probability of at least as many by chance (hypergeometric).",
        "kind of attention, role, heads, kept, expected, p",
        rows,
        texts=2,
    )


def _figure(data: Facts) -> Any:
    roles = data["heads_roles"]
    figure, panels = head_panels({name: len(layer) for name, layer in roles.items()})
    for kind, axes in panels.items():
        names = [name for name in roles if name.rpartition(".")[0] == kind]
        keys = [
            (row, name, head) for row, name in enumerate(names) for head in range(len(roles[name]))
        ]
        for i, role in enumerate(ROLES):
            here = [(head + 0.24 * (i - 1), row) for row, n, head in keys if role in roles[n][head]]
            axes.scatter(
                [x for x, _ in here], [y for _, y in here],
                s=22, marker=MARKERS[i], color=COLORS[i], label=role,
            )  # fmt: skip
        axes.set_xticks([x + 0.5 for x in range(max(len(roles[n]) for n in names))], minor=True)
        axes.set_yticks([y + 0.5 for y in range(len(names))], minor=True)
        axes.tick_params(which="minor", length=0)
        axes.grid(which="minor")  # between the heads
        kept = data.get("pruned", {}).get("kept")
        if kept is not None:
            gone = [(head, row) for row, n, head in keys if head not in kept[n]]
            axes.scatter(
                [x for x, _ in gone], [y for _, y in gone],
                s=60, marker="x", color=FAINT, label="removed", zorder=0,
            )  # fmt: skip
    handles, labels = next(iter(panels.values())).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4)
    return figure
