"""Ablation against models that are really pruned, and what it costs."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import sacrebleu
import torch

from compressor.importance.ablation_runs import losses_alone
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import prune
from tests.helpers.stages import masks, rows_of, score, scoring
from tests.helpers.tiny import uneven_mask, word_tokenizer

# The others differ in nothing that ablation touches.
FORMS = ("marian", "bert")


def ablated_with(mask: Mask, layer: Sublayer, unit: int) -> list[int]:
    """The units that are ablated together: a head alone, 32 neurons side by side; none if gone."""
    kept = mask.kept(layer.name)
    if layer.is_attention or unit not in kept:
        return [unit] if unit in kept else []
    first = kept.index(unit) // 32 * 32
    return kept[first : first + 32]


def test_losses_of_heads_alone_are_those_of_pruned_models_with_one_head():
    """Infinite for heads that are removed; every run is told as one more."""
    steps: list[tuple[int, int]] = []
    setup = scoring("bert", units="heads", progress=lambda *step: steps.append(step))
    first, *_ = setup.layers
    setup = dataclasses.replace(setup, mask=setup.mask.without([(first.name, 1)]))
    found = losses_alone(setup)
    rows = rows_of(setup)
    for head in setup.mask.kept(first.name):
        others = [(first.name, other) for other in range(first.units) if other != head]
        model = prune(setup.model, setup.layers, setup.mask.without(others))
        with torch.no_grad():
            losses = [float(setup.task.loss(model, row)) for row in rows]
        assert found[first.name][head] == pytest.approx(np.mean(losses), rel=1e-4)
    assert found[first.name][1] == math.inf
    runs = len(setup.batches) * (1 + sum(len(setup.mask.kept(x.name)) for x in setup.layers))
    assert steps == [(done, runs) for done in range(1, runs + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_ablation_is_the_loss_of_the_physically_pruned_model(name: str):
    setup = scoring(name)
    rows = rows_of(setup)
    terms = sum(int((row["labels"] != -100).sum()) for row in rows)

    def mean_loss(mask: Mask) -> float:
        model = prune(setup.model, setup.layers, mask)
        with torch.no_grad():
            return sum(float(setup.task.loss(model, row)) for row in rows) / terms

    for mask in masks(setup):
        scores = score("ablation", scoring(name, mask=mask)).values
        whole = mean_loss(mask)
        for layer in setup.layers:
            for unit in mask.kept(layer.name)[:: 1 if layer.is_attention else 32]:
                block = ablated_with(mask, layer, unit)
                expected = mean_loss(mask.without((layer.name, one) for one in block)) - whole
                shares = [scores[layer.name][one] for one in block]
                np.testing.assert_allclose(shares, expected / len(block), atol=2e-5 / len(block))


@pytest.mark.slow
def test_ablation_of_the_metric_is_what_physical_removal_costs():
    """BLEU by sacreBLEU of `generate`, of translators without the unit."""
    tokenizer, setup = word_tokenizer(), scoring("marian")
    mask, model = uneven_mask(setup.layers), setup.model
    inputs = {key: setup.batches[0][key] for key in ("input_ids", "attention_mask")}

    def answers(kept: Mask) -> list[str]:
        pruned = prune(model, setup.layers, kept)
        tokens = pruned.generate(**inputs, num_beams=1, do_sample=False, max_length=8)
        return tokenizer.batch_decode(tokens, skip_special_tokens=True)

    # The answers of a model with one head less are partly right and partly wrong.
    references = answers(mask.without([("encoder_self.0", mask.kept("encoder_self.0")[0])]))

    def metric(outputs) -> tuple[float, str]:
        return sacrebleu.corpus_bleu(outputs, [references]).score, "the metric's signature"

    job = scoring("marian", mask=mask, tokenizer=tokenizer, metric=metric)
    job.model.generation_config.max_length = 8
    scores = score("ablation", job, ablate="metric")
    whole, _ = metric(answers(mask))
    for layer in setup.layers:
        for unit in (0, 1):
            block = ablated_with(mask, layer, unit)
            left = metric(answers(mask.without((layer.name, one) for one in block)))[0]
            share = (whole - left) / len(block) if block else 0
            assert scores.values[layer.name][unit] == pytest.approx(share, abs=1e-9)
    assert any(any(values) for values in scores.values.values())
    assert scores.signature == "ablation|decrease:the metric's signature|normalize:none"
