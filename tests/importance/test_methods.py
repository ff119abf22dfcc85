"""Fisher, ablation, confidence and relevance against NumPy models, one row at a time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
import torch
from transformers.activations import ACT2FN

from compressor.errors import InputError, UsageError
from compressor.importance import METHODS, score_heads
from compressor.importance.confidence import boundary_ids
from compressor.importance.relevance import linearized
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import prune
from compressor.tasks import Batch
from tests.helpers.batches import labelled_batch, one_row
from tests.helpers.errors import raises
from tests.helpers.numpy_transformer import NumpyTransformer
from tests.helpers.stages import scoring
from tests.helpers.tiny import BUILDERS, TRANSLATORS, tiny_model, uneven_mask, word_tokenizer

ROWS = 3


def rows_of(setup) -> list[Batch]:
    return [one_row(setup.batches[0], row) for row in range(ROWS)]


def mask_arrays(mask: Mask) -> dict[str, np.ndarray]:
    return {name: np.array(flags, dtype=float) for name, flags in mask.keep.items()}


def with_gate(gates, name: str, head: int, value: float):
    changed = gates[name].copy()
    changed[head] = value
    return gates | {name: changed}


def masks(setup):
    return [Mask.full(setup.layers), uneven_mask(setup.layers)]


def ablated_with(mask: Mask, layer: Sublayer, unit: int) -> list[int]:
    """What is ablated together with a unit that is there: heads alone, 32 neurons side by side."""
    if layer.is_attention:
        return [unit]
    there = [neuron for neuron, kept in enumerate(mask.keep[layer.name]) if kept]
    first = there.index(unit) // 32 * 32
    return there[first : first + 32]


def ablations(setup) -> int:
    """Passes without something: one a head, and one for each 32 neurons of a sublayer."""
    counts = setup.mask.counts()
    return sum(counts[x.name] if x.is_attention else -(-counts[x.name] // 32) for x in setup.layers)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_numpy_model_is_the_model(name: str):
    setup = scoring(name)
    for row in rows_of(setup):
        expected = setup.task.logits(setup.model, row).detach().numpy().reshape(-1)
        actual = NumpyTransformer(setup.model, row).logits().reshape(-1)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def negative_log_likelihood(logits: np.ndarray, row: Batch) -> float:
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -log_probabilities[np.arange(len(logits)), row["labels"].numpy().reshape(-1)].sum()


@pytest.mark.parametrize("name", BUILDERS)
def test_fisher_is_the_mean_square_of_the_gates_derivative(name: str):
    """Central differences of the gates of the NumPy model, row by row."""
    setup = scoring(name)
    found = score_heads("fisher", setup, normalize="none")
    models = [(NumpyTransformer(setup.model, row), row) for row in rows_of(setup)]
    ones, step = mask_arrays(setup.mask), 1e-5
    for layer in setup.layers:
        for head in (0, layer.units - 1):
            slopes = [
                negative_log_likelihood(
                    model.logits(with_gate(ones, layer.name, head, 1 + step)), row
                )
                - negative_log_likelihood(
                    model.logits(with_gate(ones, layer.name, head, 1 - step)), row
                )
                for model, row in models
            ]
            expected = np.mean((np.array(slopes) / (2 * step)) ** 2)
            assert found.values[layer.name][head] == pytest.approx(expected, rel=1e-3, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_ablation_is_the_loss_of_the_physically_pruned_model(name: str):
    setup = scoring(name)
    rows = rows_of(setup)
    terms = sum(int((row["labels"] != -100).sum()) for row in rows)

    def mean_loss(mask: Mask) -> float:
        model = prune(setup.model, setup.layers, mask)
        with torch.no_grad():
            return sum(float(setup.task.loss(model, row)) for row in rows) / terms

    for mask in masks(setup):
        found = score_heads("ablation", scoring(name, mask=mask))
        whole = mean_loss(mask)
        for layer in setup.layers:
            kept = mask.kept(layer.name)
            for unit in kept if layer.is_attention else kept[::32]:
                block = ablated_with(mask, layer, unit)
                expected = mean_loss(mask.without((layer.name, one) for one in block)) - whole
                for one in block:
                    assert found.values[layer.name][one] == pytest.approx(
                        expected / len(block), abs=2e-5 / len(block)
                    )


def short_answers(setup):
    if setup.model.config.is_encoder_decoder:
        setup.model.generation_config.max_length = 8
    return setup


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_ablation_of_the_metric_is_what_physical_removal_costs(name: str):
    """BLEU by sacreBLEU of `generate`, accuracy by counting, of models without the head."""
    tokenizer = word_tokenizer()
    for make_mask in (Mask.full, uneven_mask) if name in ("marian", "bert") else (uneven_mask,):
        setup = scoring(name)
        mask, batch = make_mask(setup.layers), setup.batches[0]
        short_answers(setup)
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}

        def answers(model, inputs=inputs) -> list[str]:
            if name in TRANSLATORS:
                tokens = model.generate(**inputs, num_beams=1, do_sample=False)
                return tokenizer.batch_decode(tokens, skip_special_tokens=True)
            return [f"LABEL_{i}" for i in model(**inputs).logits.argmax(-1).tolist()]

        # What a model with one head less says is partly right and partly wrong.
        other = mask.without([("encoder_self.0", mask.kept("encoder_self.0")[0])])
        references = answers(prune(setup.model, setup.layers, other))

        def metric(found, references=references) -> tuple[float, str]:
            if name in TRANSLATORS:
                value = sacrebleu.corpus_bleu(found, [references]).score
            else:
                value = 100 * np.mean([a == b for a, b in zip(found, references, strict=True)])
            return value, "the metric's signature"

        def value(mask: Mask, setup=setup, metric=metric) -> float:
            return metric(answers(prune(setup.model, setup.layers, mask)))[0]

        setup = short_answers(scoring(name, mask=mask, tokenizer=tokenizer, metric=metric))
        found = score_heads("ablation", setup, ablate="metric")
        whole = value(mask)
        for layer in setup.layers:
            for unit in range(layer.units)[:2]:
                there = mask.keep[layer.name][unit]
                block = ablated_with(mask, layer, unit) if there else []
                drop = whole - value(mask.without((layer.name, one) for one in block))
                share = drop / len(block) if block else 0
                assert found.values[layer.name][unit] == pytest.approx(share, abs=1e-9)
        assert any(any(values) for values in found.values.values()) or name not in TRANSLATORS
        assert found.signature == "ablation|decrease:the metric's signature|normalize:none"


def test_ablation_of_the_metric_needs_references():
    with raises(UsageError, "references-missing"):
        score_heads("ablation", scoring("bert"), ablate="metric")


def test_ablation_states_its_cost_and_computes_no_layer_below_the_heads_again():
    batches = [labelled_batch(tiny_model("marian"), seed=seed) for seed in (0, 1)]
    steps = []
    setup = scoring("marian", batches, progress=lambda done, total: steps.append((done, total)))
    runs = {"": 0, "encoder.layers.0": 0, "encoder.layers.1": 0, "decoder.layers.2": 0}
    for name in runs:
        module = setup.model.get_submodule(f"model.{name}.fc1" if name else "")
        module.register_forward_hook(lambda *_, name=name: runs.update({name: runs[name] + 1}))
    cost = score_heads("ablation", setup).cost
    own = 4 + 2  # heads of an encoder layer, and blocks of its 48 neurons
    removed = 4 * (2 + 3 + 3) + 2 * (2 + 3)
    assert runs[""] == cost["forward_passes"] == 2 * (1 + removed)
    assert cost["backward_passes"] == 0
    assert runs["encoder.layers.0"] == 2 * (1 + own)  # with everything, and without its own
    assert runs["encoder.layers.1"] == 2 * (1 + own + own)  # and without the layer's below
    assert runs["decoder.layers.2"] == 2 * (1 + removed)  # everything is below it
    assert steps == [(n, 2 * (1 + removed)) for n in range(1, 2 * (1 + removed) + 1)]


def tokenizer_with(boundaries: set[int]) -> SimpleNamespace:
    """A tokenizer that ends and begins texts with these tokens, up to four."""
    names = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
    return SimpleNamespace(**dict(zip(names, boundaries, strict=False)))


@pytest.mark.parametrize("name", BUILDERS)
def test_confidence_is_the_mean_largest_attention_weight(name: str):
    """softmax(q k^T / sqrt(d)) in NumPy; two tokens of the source, one of the target excluded."""
    setup = scoring(name, units="heads")
    ids = setup.batches[0]["input_ids"]
    special = {int(ids[0, 0]), int(ids[2, 4])}
    if "decoder_input_ids" in setup.batches[0]:
        special.add(int(setup.batches[0]["decoder_input_ids"][0, 2]))
    for mask in masks(setup):
        options = {"tokenizer": tokenizer_with(special), "mask": mask, "units": "heads"}
        found = score_heads("confidence", scoring(name, **options), normalize="none")
        expected = {layer.name: [] for layer in setup.layers}
        for row in rows_of(setup):
            model = NumpyTransformer(setup.model, row)
            model.logits(mask_arrays(mask))
            words = {
                part: ~np.isin(row[part][0].numpy(), list(special))
                for part in ("input_ids", "decoder_input_ids")
                if part in row
            }
            for layer in setup.layers:
                queries = "input_ids" if layer.kind == "encoder_self" else "decoder_input_ids"
                keys = "decoder_input_ids" if layer.kind == "decoder_self" else "input_ids"
                for query in np.flatnonzero(words[queries]):
                    weights = model.probabilities[layer.name][:, query, words[keys]]
                    if weights.shape[1]:
                        expected[layer.name].append(weights.max(-1))
        for layer in setup.layers:
            kept = np.array(mask.keep[layer.name])
            np.testing.assert_allclose(
                found.values[layer.name], np.mean(expected[layer.name], 0) * kept, rtol=1e-4
            )


def test_a_cross_attention_query_without_a_word_to_look_at_does_not_count():
    batch = labelled_batch(tiny_model("marian"), rows=2)
    batch["input_ids"][1, :2] = 3  # the second row has but two tokens
    both, first = (
        score_heads(
            "confidence",
            scoring("marian", batches, "heads", tokenizer=tokenizer_with({3})),
            normalize="none",
        )
        for batches in ([batch], [one_row(batch, 0)])
    )
    np.testing.assert_allclose(both.values["cross.0"], first.values["cross.0"], rtol=1e-4)


def test_confidence_of_rows_without_words_is_refused():
    setup = scoring("bert")
    setup.batches[0]["input_ids"][:] = 3
    with raises(InputError, "calibration-without-words"):
        score_heads(
            "confidence", scoring("bert", setup.batches, "heads", tokenizer=tokenizer_with({3}))
        )


@pytest.mark.parametrize("units", ["neurons", None])
def test_confidence_of_neurons_is_refused(units: str | None):
    with raises(UsageError, "method-for-heads-alone"):
        score_heads("confidence", scoring("bert", units=units))


def test_boundary_ids_are_the_tokenizers_begin_and_end():
    class Tokenizer:
        cls_token_id, sep_token_id, bos_token_id = 101, 102, None
        pad_token_id, unk_token_id, mask_token_id = 0, 100, 103

    assert boundary_ids(Tokenizer()) == {101, 102}


def relevances(model: NumpyTransformer, layers, mask: Mask) -> dict[str, np.ndarray]:
    """Relevance per sublayer, [positions, units].

    With probabilities, deviations and activation ratios fixed, logits are affine in one unit's
    gate: the derivative is the difference that closing the gate makes.
    """
    gates = mask_arrays(mask)
    logits = model.logits(gates)
    positions, top = np.arange(len(logits)), logits.argmax(-1)

    def without(name: str, unit: int) -> np.ndarray:
        return model.logits(with_gate(gates, name, unit, 0), frozen=True)[positions, top]

    whole = logits[positions, top]
    return {
        x.name: np.stack([whole - without(x.name, unit) for unit in range(x.units)], 1)
        for x in layers
    }


def shares(relevance: np.ndarray) -> np.ndarray:
    """Of the absolute values in each row."""
    total = np.abs(relevance).sum(-1, keepdims=True)
    return np.abs(relevance) / np.where(total > 0, total, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_relevance_is_the_contribution_in_the_linear_part_of_the_model(name: str):
    setup = scoring(name)
    for mask in masks(setup):
        by_row = [
            relevances(NumpyTransformer(setup.model, row), setup.layers, mask)
            for row in rows_of(setup)
        ]
        for per in ("token", "example"):
            found = score_heads("relevance", scoring(name, mask=mask), per=per, normalize="none")
            for layer in setup.layers:
                rows = [row[layer.name] for row in by_row]
                if per == "example":
                    rows = [row.sum(0, keepdims=True) for row in rows]
                expected = np.concatenate([shares(row) for row in rows]).mean(0)
                np.testing.assert_allclose(found.values[layer.name], expected, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("activation", ["gelu_new", "swish", "relu"])
def test_relevance_passes_through_every_activation(activation: str):
    """gelu_new is made of elementary functions, swish is a module, relu is zero in places."""
    setup = scoring("marian", units="heads")
    for module in setup.model.modules():
        if hasattr(module, "activation_fn"):
            module.activation_fn = ACT2FN[activation]
    found = score_heads("relevance", setup, normalize="none")
    by_row = [
        relevances(NumpyTransformer(setup.model, row, activation), setup.layers, setup.mask)
        for row in rows_of(setup)
    ]
    for layer in setup.layers:
        expected = np.concatenate([shares(row[layer.name]) for row in by_row]).mean(0)
        np.testing.assert_allclose(found.values[layer.name], expected, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_linearized_model_answers_as_the_model(name: str):
    setup = scoring(name)
    with torch.no_grad():
        expected = setup.task.logits(setup.model, setup.batches[0])
        with linearized(setup):
            actual = setup.task.logits(setup.model, setup.batches[0])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_relevance_states_its_cost():
    batches = [labelled_batch(tiny_model("marian"), seed=seed) for seed in (0, 1)]
    assert batches[0]["labels"].shape[1] == 6
    by_position = score_heads("relevance", scoring("marian", batches)).cost
    at_once = score_heads("relevance", scoring("marian", batches), per="example").cost
    assert (by_position["forward_passes"], by_position["backward_passes"]) == (2, 12)
    assert (at_once["forward_passes"], at_once["backward_passes"]) == (2, 2)


class Stopped(Exception):
    pass


def state_of(model):
    return (
        {name: value.clone() for name, value in model.state_dict().items()},
        {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()},
        {
            name: (
                module.training,
                len(module._forward_hooks),
                len(module._forward_pre_hooks),
                "forward" in vars(module),
            )
            for name, module in model.named_modules()
        },
        model.config._attn_implementation,
    )


def stop_at_pass(model, number: int) -> None:
    """Raise from the inside of a forward pass, after all attention."""
    passes = iter(range(1, 1000))

    def stop(*_) -> None:
        if next(passes) == number:
            raise Stopped

    last = "lm_head" if model.config.is_encoder_decoder else "classifier"
    model.get_submodule(last).register_forward_hook(stop)


CASES = [(method, False) for method in METHODS]
CASES += [(method, True) for method in METHODS if METHODS[method].needs_rows]


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(("method", "fails"), CASES)
def test_every_method_scores_every_unit_and_leaves_the_model_alone(method, name, fails):
    setup = scoring(name, units="heads" if method == "confidence" else None)
    if fails:
        stop_at_pass(setup.model, 1 + ablations(setup) if method == "ablation" else 1)
    setup.model.train()
    first = setup.model.get_submodule(setup.layers[0].block)
    first.eval()
    for parameter in first.parameters():
        parameter.requires_grad_(False)
    weights, gradients, modules, implementation = state_of(setup.model)
    if fails:
        with pytest.raises(Stopped):
            score_heads(method, setup)
    else:
        found = score_heads(method, setup)
        assert {n: len(v) for n, v in found.values.items()} == setup.mask.counts()
        assert np.isfinite(np.concatenate(list(found.values.values()))).all()
    after = state_of(setup.model)
    assert all(torch.equal(weights[key], after[0][key]) for key in weights)
    assert (gradients, modules, implementation) == after[1:]


@pytest.mark.parametrize("name", ["marian", "bart", "bert", "distilbert"])
@pytest.mark.parametrize("method", ["fisher", "ablation", "confidence", "relevance"])
def test_padding_and_batching_do_not_change_scores(method: str, name: str):
    batch = labelled_batch(tiny_model(name), rows=5)
    plain = {"normalize": "none"} if "normalize" in METHODS[method].options else {}
    units = "heads" if method == "confidence" else None
    together = score_heads(method, scoring(name, [batch], units), **plain)
    rows = [one_row(batch, row) for row in range(5)]
    apart = score_heads(method, scoring(name, rows, units), **plain)
    for layer, values in together.values.items():
        np.testing.assert_allclose(values, apart.values[layer], rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_layers_have_norm_one_where_a_method_can_be_normalized(method: str):
    found = score_heads(method, scoring("bert", units="heads"))
    norms = [np.linalg.norm(values) for values in found.values.values()]
    normalized = "normalize" in METHODS[method].options
    assert np.allclose(norms, 1) == normalized
    assert found.signature.endswith(f"|normalize:{'layer' if normalized else 'none'}")


@pytest.mark.parametrize(
    ("method", "option", "other"),
    [
        ("taylor", "per", "example"),
        ("relevance", "per", "example"),
        ("taylor", "normalize", "none"),
    ],
)
def test_an_option_changes_scores_and_signature(method: str, option: str, other: str):
    setup = scoring("marian", units="heads")
    usual, changed = score_heads(method, setup), score_heads(method, setup, **{option: other})
    assert usual.values != changed.values
    assert f"|{option}:{other}" in changed.signature
    assert f"|{option}:{other}" not in usual.signature
