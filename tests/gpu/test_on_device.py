"""What runs on a GPU: whole runs, answers, distillation. A classifier runs on the CPU, too.

Expected answers are those of transformers in float32, on the same device.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import compressor
from compressor.options.requests import ExportRequest, make_request
from compressor.pipeline.run import run
from compressor.pipeline.single import export_checkpoint
from compressor.recovery import distillation
from compressor.recovery.distillation import Distillation
from compressor.runtime import collate
from compressor.runtime.session import PROVIDERS
from compressor.tasks import TASKS
from compressor.training.data import TrainingRows, batches_of_rank, hold_out
from compressor.training.loop import Schedule, _Run
from compressor.training.optimizer import embedding_tables, sparse_gradients
from tests.helpers import toy
from tests.helpers.runs import recipe_for
from tests.helpers.stages import divergence, job, repair

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
# Each form of attention, of normalization and of a decoder's step.
NAMES = ("bert", "distilbert", "mpnet", "modernbert", "deberta-v2", "marian", "mbart", "t5")
PLAIN = ("deberta-v2", "t5")  # of which nothing is captured
ON_CPU = pytest.param(("cpu", "bert"), marks=pytest.mark.attack)
CASES = [*(pytest.param(("cuda", name), marks=GPU) for name in ("bert", "marian")), ON_CPU]
MODELS = [*(pytest.param(("cuda", name), marks=GPU) for name in NAMES), ON_CPU]
PRECISIONS = {"fp32": 1e-4, "fp16": 2e-2}  # and the largest difference of logits, of the largest


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_run_records_where_everything_ran(case: tuple[str, str], tmp_path: Path):
    device, name = case
    model = toy.checkpoint(tmp_path / name, name)
    recipe = recipe_for(model, tmp_path, device=device, precision=["fp32", "fp16"])
    report = run(recipe, tmp_path / "out")
    assert report.throughput is not None
    # On a GPU with the number of CUDA graphs behind it, and with PyTorch beside it.
    rows = [row for row in report.throughput.rows if row.engine == "onnxruntime"]
    assert {row.provider.partition(",")[0] for row in rows} == {PROVIDERS[device]}
    assert {row.precision for row in report.throughput.rows} == set(PRECISIONS)
    assert all(v.quality is not None for v in (report.dense, *report.variants))
    checks = [check for v in (report.dense, *report.variants) for check in v.checks]
    assert all(check.largest_difference <= check.tolerance for check in checks)


@pytest.mark.parametrize("case", MODELS, ids="-".join)
def test_answers_are_those_of_pytorch_on_the_device(case: tuple[str, str], tmp_path: Path):
    """Of a model with layers without units, whose graphs the export compared there."""
    device, name = case
    output = toy.pruned(toy.checkpoint(tmp_path / "dense", name), tmp_path / "pruned")
    options = {"model": str(output), "precision": list(PRECISIONS), "device": device}
    export_checkpoint(make_request(ExportRequest, **options), output)
    model = compressor.load(output).to(device).eval()
    task = TASKS["translation" if model.config.is_encoder_decoder else "classification"]
    for precision, tolerance in PRECISIONS.items():
        runtime, plain = (
            task.open(output, precision=precision, device=device, cuda_graphs=graphs)
            for graphs in (True, False)
        )
        assert runtime.provider == PROVIDERS[device]  # nothing else took its place
        rows = sorted(runtime.encode(toy.sentences(24, seed=5)), key=len)
        artifact = runtime.artifact
        batch = collate(rows, artifact.pad_token_id, artifact.inputs)
        given = {name: torch.from_numpy(value).to(device) for name, value in batch.items()}
        if task.name == "classification":
            with torch.no_grad():
                expected = model(**given).logits.float().cpu().numpy()
            with ThreadPoolExecutor(3) as pool:
                answers = pool.map(runtime.compute, [batch] * 6)
            for found in (*answers, plain.compute(batch)):
                np.testing.assert_allclose(found, expected, atol=tolerance * abs(expected).max())
        else:
            for beams in (3, 1):
                answers = runtime.generate(batch, num_beams=beams)
                assert answers == plain.generate(batch, num_beams=beams)
            tokens = model.generate(**given, num_beams=1, do_sample=False)[:, 1:].tolist()
            end = artifact.generation.eos_token_id[0]
            wanted = [row[: row.index(end) + 1] if end in row else row for row in tokens]
            same = sum(a == b for a, b in zip(answers, wanted, strict=True))
            assert same >= (1.0 if precision == "fp32" else 0.9) * len(wanted)
        captures = (device, precision) == ("cuda", "fp16") and name not in PLAIN
        assert bool(runtime.captured) == captures


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_distillation_brings_the_model_closer(case: tuple[str, str]):
    device, name = case
    setup = job(name, device=device)
    before = divergence(setup, setup.pruned, setup.examples)
    options = {"epochs": 8, "batch": 8, "learning_rate": 1e-3, "hidden": 1.0, "patience": 9}
    recovered = repair(setup, distill=options)
    assert divergence(setup, recovered.model, setup.examples) < 0.8 * before
    assert {p.device.type for p in recovered.model.parameters()} == {"cpu"}
    assert ("products in bf16" in recovered.text) == (device == "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", ["marian", "bert", "t5"])
def test_no_step_waits_for_the_gpu(name: str, monkeypatch: pytest.MonkeyPatch):
    """PyTorch itself raises where it would wait."""
    monkeypatch.setattr(distillation, "uses_muon", lambda job: True)
    setup = job(name, device="cuda")
    setup.dense.to("cuda")
    setup.pruned.to("cuda")
    learn, held = hold_out(setup.examples, 0)
    batches = batches_of_rank(setup.task, held, setup.dense, "cuda")
    problem = Distillation(setup, setup.pruned, batches, 1e-3, 1.0, "bf16")
    rows = TrainingRows(learn, setup.task, setup.dense, "cuda")
    run = _Run(problem, rows, Schedule(2, batch_size=8), 0, None)
    first, *others = run.batches.of_epoch(0)
    with sparse_gradients(embedding_tables(problem.student)):
        run.step(first)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in others:
                run.step(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    run.read_losses()
    assert np.isfinite(run._loss)
