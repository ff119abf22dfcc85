"""Distillation: its loss against SciPy, and what any recovery changes and leaves alone."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from compressor.errors import InputError, UsageError
from compressor.model.sublayers import Sublayer, by_layer
from compressor.recovery import Recovered, RecoveryJob, least_squares
from compressor.recovery import teacher as teacher_module
from compressor.recovery.distillation import Distillation
from compressor.recovery.hidden_states import outputs_of, variances
from compressor.recovery.teacher import Teacher
from compressor.tasks import Batch
from compressor.training.data import hold_out
from tests.helpers.errors import raises
from tests.helpers.stages import divergence, job, repair
from tests.helpers.texts import classified, some_lines, translated, write
from tests.helpers.tiny import STACKS, TRANSLATORS

OPTIONS = {"learning_rate": 1e-3, "hidden": 0.0}


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_the_loss_is_the_divergence_from_the_dense_model(name: str):
    setup = job(name)
    held = setup.examples[:20]
    problem = Distillation(setup, setup.pruned, setup.task.batches(held, setup.dense), 1e-3)
    expected = divergence(setup, setup.pruned, held)
    assert problem.validate(0.0) == pytest.approx(expected, rel=1e-4)
    (batch,) = setup.task.batches(held, setup.dense)
    assert float(problem.loss(batch, 0.0).detach()) == pytest.approx(problem.validate(0.0))


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_products_are_in_bfloat16(name: str):
    """Linear layers compute in bfloat16, attention in float32; weights and judging are as ever."""
    setup = job(name)
    seen: dict[str, set[torch.dtype]] = {"linear": set(), "attention": set()}
    problem = Distillation(
        setup, setup.pruned, setup.task.batches(setup.examples, setup.dense), 1e-3, 0.0, "bf16"
    )
    layer = next(x for x in setup.pruned.modules() if isinstance(x, nn.Linear))
    (batch,) = setup.task.batches(setup.examples[:8], setup.dense)

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is nn.functional.scaled_dot_product_attention:
                seen["attention"] |= {x.dtype for x in args[:3]}
            return func(*args, **(kwargs or {}))

    handle = layer.register_forward_hook(lambda *x: seen["linear"].add(x[-1].dtype))
    with Watch():
        problem.loss(batch, 0.0).backward()
    handle.remove()
    assert seen == {"linear": {torch.bfloat16}, "attention": {torch.float32}}
    assert {p.dtype for p in setup.pruned.parameters()} == {torch.float32}


def test_reconstruction_does_not_see_the_rows_that_distillation_judges_itself_on(monkeypatch):
    seen: set[int] = set()
    monkeypatch.setattr(
        least_squares,
        "reconstruct",
        lambda _, job: seen.update(e.row for e in job.examples) or Recovered(job.pruned, "noted"),
    )
    setup = job("bert")
    learn, held = hold_out(setup.examples, setup.seed)
    text = repair(setup, reconstruct={}, distill={**OPTIONS, "epochs": 1}).text
    assert text.startswith("noted; then distill")
    assert seen == {example.row for example in learn}
    assert not seen & {example.row for example in held}


def test_what_does_not_help_is_taken_back():
    """Steps that are far too large make it worse everywhere; the pruned model is the result."""
    setup = job("bert")
    recovered = repair(setup, distill={**OPTIONS, "epochs": 2, "learning_rate": 3.0})
    assert recovered.text.startswith("distill: nothing gained on 8 held-out rows")
    assert recovered.model is setup.pruned


@pytest.mark.parametrize(
    ("options", "trained"),
    [({"epochs": 5}, 3), ({"epochs": 9}, 4), ({"epochs": 9, "patience": 1}, 2)],
)
def test_a_third_of_the_epochs_may_gain_nothing(options: dict[str, int], trained: int):
    """At least two, or as many as `--patience` says; here the first epoch stays the best."""
    lines: list[str] = []
    setup = replace(job("bert"), report=lines.append)
    repair(setup, distill={**OPTIONS, "learning_rate": 3.0, **options})
    epochs = [line for line in lines if f" of {options['epochs']}: loss" in line]
    assert len(epochs) == trained
    assert "stopping early" in epochs[-1]


@pytest.mark.parametrize("methods", [("reconstruct",), ("distill",), ("reconstruct", "distill")])
def test_the_models_handed_in_stay_as_they_are(methods: tuple[str, ...]):
    """And share what is not changed: embeddings are most of a translator's weights."""
    setup = job("marian", rows=48)
    setup.pruned.train()
    before = [copy.deepcopy(model.state_dict()) for model in (setup.dense, setup.pruned)]
    flags = [p.requires_grad for p in setup.pruned.parameters()]
    options = {"reconstruct": {}, "distill": {"epochs": 1, "learning_rate": 1e-3}}
    recovered = repair(setup, **{method: options[method] for method in methods}).model
    for model in (setup.dense, setup.pruned, recovered):
        assert not any(x._forward_hooks or x._forward_pre_hooks for x in model.modules())
    for model, state in zip((setup.dense, setup.pruned), before, strict=True):
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(module.training for module in setup.pruned.modules())
    assert [p.requires_grad for p in setup.pruned.parameters()] == flags
    assert any(not torch.equal(v, before[1][k]) for k, v in recovered.state_dict().items())
    assert recovered.lm_head.weight is recovered.model.shared.weight  # tied, as in the pruned one
    shares = recovered.model.shared.weight is setup.pruned.model.shared.weight
    assert shares == (methods == ("reconstruct",))


def test_what_cannot_be_recovered():
    setup = job("bert", rows=12)
    with raises(UsageError, "recovery-unknown"):
        repair(setup, distil={})
    with raises(InputError, "too-few-rows-to-train"):
        repair(setup, distill={})
    with torch.no_grad():
        setup.pruned.get_submodule(setup.layers[1].inputs["value"]).weight.fill_(torch.nan)
    with raises(InputError, "activations-not-finite"):
        repair(setup, reconstruct={})


def without_final_norms(name: str) -> RecoveryJob:
    """mBART's last hidden states in the output are normalized; layers return what comes before."""
    setup = job(name)
    for model in (setup.dense, setup.pruned) if name == "mbart" else ():
        for stack in (model.model.encoder, model.model.decoder):
            stack.layer_norm = nn.Identity()
    return setup


def hidden_states(model: nn.Module, batch: Batch) -> list[np.ndarray]:
    """After every layer, by transformers itself: [real tokens, width] in double precision."""
    with torch.no_grad():
        output = model(**batch.inputs(), output_hidden_states=True)
    source = batch["attention_mask"].bool()
    if not model.config.is_encoder_decoder:
        stacks = [(output.hidden_states, source)]
    else:
        target = batch["labels"] != -100
        stacks = [
            (output.encoder_hidden_states, source), (output.decoder_hidden_states, target)
        ]  # fmt: skip
    return [state[real].double().numpy() for states, real in stacks for state in states[1:]]


@pytest.mark.parametrize("name", STACKS)
def test_the_loss_adds_the_difference_in_units_of_variance(name: str):
    """Computed by NumPy from `output_hidden_states`; the variance is that of the held-out rows."""
    setup = without_final_norms(name)
    held = setup.task.batches(setup.examples[:20], setup.dense, batch_tokens=None)
    (batch,) = setup.task.batches(setup.examples[20:], setup.dense, batch_tokens=None)
    plain = Distillation(setup, setup.pruned, held, 1e-3, hidden=0.0).loss(batch, 0.0)
    both = Distillation(setup, setup.pruned, held, 1e-3, hidden=2.5).loss(batch, 0.0)
    units = [state.var(axis=0).mean() for state in hidden_states(setup.dense, held[0])]
    differences = [
        np.square(a - b).mean() / unit
        for a, b, unit in zip(
            hidden_states(setup.dense, batch),
            hidden_states(setup.pruned, batch),
            units,
            strict=True,
        )
    ]
    added = float((both - plain).detach())
    # What the dense model says is kept in bfloat16.
    assert added == pytest.approx(2.5 * np.mean(differences), rel=1e-3)
    assert added > 0.1


def test_variances_are_those_over_all_batches():
    """NumPy's over all tokens, of two blocks and of one whose states are all the same."""
    rng = np.random.default_rng(0)
    batches = [
        [rng.normal(2, 3, (tokens, 5)), rng.normal(size=(tokens, 5)), np.ones((tokens, 5))]
        for tokens in (7, 1, 4)
    ]
    found = variances([torch.from_numpy(state) for state in states] for states in batches)
    whole = [np.concatenate(states) for states in zip(*batches, strict=True)]
    assert found[:2] == pytest.approx([states.var(axis=0).mean() for states in whole[:2]])
    assert found[2] == 1.0


@pytest.mark.parametrize("name", STACKS)
def test_matching_them_brings_the_pruned_model_closer(name: str):
    """To the dense model, in predictions and in hidden states."""
    setup = job(name)
    held = setup.task.batches(setup.examples, setup.dense)

    def judged(model: nn.Module) -> tuple[float, float]:
        problem = Distillation(setup, model, held, 1e-3, hidden=1.0)
        total = float(problem.loss(held[0], 0.0).detach())
        problem.blocks = []
        return problem.validate(0.0), total - float(problem.loss(held[0], 0.0).detach())

    options = {"learning_rate": 1e-3, "epochs": 8, "hidden": 1.0}
    before, after = judged(setup.pruned), judged(repair(setup, distill=options).model)
    assert after[0] < 0.9 * before[0]
    assert after[1] < 0.9 * before[1]


def batches_of(setup: RecoveryJob, size: int) -> list[Batch]:
    return setup.task.batches(setup.examples, setup.dense, batch_tokens=None, batch_size=size)


def said(setup: RecoveryJob, blocks: list[Sublayer], batch: Batch) -> list[torch.Tensor]:
    """Log-probabilities, and the hidden states after each block, from one ordinary pass."""
    with torch.no_grad():
        logits, states = outputs_of(setup.dense, setup.task, batch, blocks)
    answers = logits.double().log_softmax(-1).float()
    return [answers, *states]


def require_answers(teacher: Teacher, batch: Batch, expected: list[torch.Tensor]) -> None:
    """Hidden states are kept in bfloat16, which has eight bits, a translator's last in float16."""
    answers, hidden = teacher.outputs(batch)
    off = 5e-5 if teacher.projection is None else 2e-3
    torch.testing.assert_close(answers, expected[0], atol=off, rtol=1e-4)
    if teacher.projection is not None:
        lost = (expected[0].exp() * (expected[0] - answers)).sum(-1)
        assert lost.abs().max() < 1e-5  # divergence, nats
    for found, wanted in zip(hidden, expected[1:], strict=True):
        torch.testing.assert_close(found.float(), wanted, atol=5e-5, rtol=2**-8)


@pytest.mark.parametrize(
    ("name", "matching"), [*((name, True) for name in STACKS), ("marian", False), ("bert", False)]
)
def test_rows_it_has_read_are_what_the_model_says_in_any_batch(
    name: str, matching: bool, monkeypatch
):
    """Kept from batches of 16 rows, asked in batches of 5; a bias of the vocabulary counts.

    Of a model of a few numbers some rows are kept, and the others are computed.
    """
    setup = job(name)
    model, read = setup.dense, batches_of(setup, 16)
    if name in TRANSLATORS:
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    blocks = [x[0] for x in by_layer(setup.layers).values()] if matching else []
    asked = batches_of(setup, 5)
    expected = [said(setup, blocks, batch) for batch in asked]
    width = model.config.d_model if name in TRANSLATORS else model.config.num_labels
    few = torch.zeros(6000 if matching else 30 * width)
    with monkeypatch.context() as patched:
        patched.setattr(teacher_module, "LEAST_ROOM", 0)
        patched.setattr(teacher_module, "all_bytes", lambda device: None)
        patched.setattr(model, "parameters", lambda: iter([few]))
        small = Teacher(model, setup.task, read, blocks)
    assert 0 < len(small.kept) < 48
    kept = [x for lesson in small.kept.values() for x in (lesson.read, *lesson.hidden)]
    memory = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}
    assert sum(memory.values()) <= 4 * len(few)
    for batch, wanted in zip(asked, expected, strict=True):
        require_answers(small, batch, wanted)

    teacher = Teacher(model, setup.task, read, blocks)
    assert set(teacher.kept) == set(range(48))
    model.forward = None  # whatever is asked now is not computed
    for batch, wanted in zip(asked, expected, strict=True):
        require_answers(teacher, batch, wanted)


@pytest.mark.parametrize(
    ("memory", "ranks", "room"),
    [
        (64 << 30, 1, 16 << 30),
        (64 << 30, 2, 4 << 30),  # of each of two ranks, and both keep the rows of both
        (4 << 30, 1, 2 << 30),
        (None, 1, 2 << 30),  # not known
    ],
)
def test_what_it_keeps_takes_a_quarter_of_the_memory(memory, ranks, room, monkeypatch):
    """Or two GiB."""
    monkeypatch.setattr(teacher_module, "all_bytes", lambda device: memory)
    monkeypatch.setattr(teacher_module.parallel, "size", lambda: ranks)
    monkeypatch.setattr(teacher_module, "_gather_outputs", lambda cached, device: cached)
    setup = job("bert")
    assert Teacher(setup.dense, setup.task, []).memory_left == room


def test_outputs_for_a_text_are_kept_and_shown(tmp_path, monkeypatch):
    """Block by block; what does not fit by half is computed each time."""
    monkeypatch.setattr(teacher_module, "_READ_BLOCKS", 1)
    setup, shown = job("bert"), []
    text = classified(write(tmp_path / "text.txt", some_lines(70)))
    teacher = Teacher(setup.dense, setup.task, batches_of(setup, 16))
    assert teacher.cache_text(text, lambda *step: shown.append(step)) == 70
    assert shown == [(32, 70), (64, 70), (70, 70)]
    assert set(teacher.kept) == set(range(-70, 48))
    (batch,) = setup.task.batches(text.read([2]), setup.dense)
    require_answers(teacher, batch, said(setup, [], batch))
    small = Teacher(setup.dense, setup.task, [])
    small.memory_left = 10 * teacher.kept[-1].bytes
    assert small.cache_text(text) == 0
    assert small.kept == {}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["bert", "marian", "t5"])
def test_answers_to_a_text_are_kept_as_a_step_computes_them(name, precision, tmp_path):
    """In the precision of the training, so that it does not depend on which lines fit."""
    if name in TRANSLATORS:
        text = translated(tmp_path, 40)
    else:
        text = classified(write(tmp_path / "text.txt", some_lines(40)))
    setup = job(name, text=text)
    held = setup.task.batches(setup.examples[:8], setup.dense)
    problem = Distillation(setup, setup.pruned, held, 1e-3, precision=precision)
    (batch,) = setup.task.batches(text.read([0]), setup.dense)
    computed = float(problem.loss(batch, 0.0).detach())
    problem.read_text(text)
    assert {-row for row in problem.teacher.kept if row < 0} == set(range(1, 41))
    if name == "bert":
        kept = {outputs.read.dtype for row, outputs in problem.teacher.kept.items() if row < 0}
        assert kept == {torch.bfloat16 if precision == "bf16" else torch.float32}
    problem.teacher.dense.forward = None  # nothing of it is computed again
    assert float(problem.loss(batch, 0.0).detach()) == pytest.approx(computed, rel=0.02)


def test_a_training_says_how_many_texts_do_not_fit_into_memory(tmp_path, monkeypatch):
    """The dense model reads them again in every epoch, which takes time."""
    said: list[str] = []
    text = classified(write(tmp_path / "text.txt", some_lines(40)))
    setup = job("bert", text=text, report=said.append)
    monkeypatch.setattr(Teacher, "cache_text", lambda self, text, progress: 30)
    repair(setup, distill={**OPTIONS, "epochs": 2, "batch": 64})
    (line,) = [line for line in said if "memory" in line]
    assert "answers to 30 of 40 texts fit into memory" in line


def test_a_training_on_a_text_shows_the_rows_that_the_teacher_reads(tmp_path):
    """The progress of the rows, of the text's 40 lines, and of the steps."""
    shown: list[tuple[int, int]] = []
    text = classified(write(tmp_path / "text.txt", some_lines(40)))
    setup = job("bert", text=text, progress=lambda *step: shown.append(step))
    repair(setup, distill={**OPTIONS, "epochs": 2, "batch": 64})
    assert shown[1] == (40, 40)
    assert shown[2:] == [(step, 4) for step in range(1, 5)]
