"""What is refused before anything is written: one table of runs, and one of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.errors import CompressError
from compressor.pipeline.run import run
from tests.helpers.command_line import invoke
from tests.helpers.runs import recipe
from tests.pipeline.task_runs import RUNS

WITHOUT_USE, EXCLUDE = "option-without-use", "options-exclude-each-other"
NO_KEEP, TIMED = {"keep": []}, {"bench": True, "batch_size": "2,4"}
SPEED = NO_KEEP | {"speedup": 1.3, "at_batch": 4}
LAYERS = NO_KEEP | {"macs": "0.5"}
TEXT = {"recover": "distill", "distill_text": "TEXT"}
# Options of a run of a classifier of 12 heads; id of the error, and what its message has in it.
REFUSED = [
    ({"keep": ["2"]}, "floors-too-high", "need 3"),
    ({"keep": ["cross=0.5"]}, "kind-unknown", "'cross'"),
    ({"task": "translation"}, "task-of-another-model", "translation"),
    ({"test": None, "max_metric_drop": ["accuracy=1"]}, "test-rows-missing", "accuracy=1"),
    (TIMED | {"min_speedup": ["1.1@32"]}, "batch-size-not-measured", "32"),
    (TIMED | {"min_fastest_speedup": ["2"]}, "engines-missing", "--engines"),
    ({"max_metric_drop": ["bleu=1"]}, "metric-of-another-task", "accuracy"),
    ({"model": "/nothing/there"}, "checkpoint-missing", "/nothing/there"),
    ({"calibration": ""}, "format-unknown", ""),
    ({"model": "PRUNED"}, "checkpoint-already-pruned", "units"),
    # Learned masks, repairs, and options of other choices.
    ({"method": "subset", "train_weights": "all", "recover": "reconstruct"}, EXCLUDE,
     "--train-weights all"),
    ({"method": "taylor", "penalty": 0.1} | NO_KEEP, WITHOUT_USE, "--method hard-concrete"),
    ({"method": "confidence", "keep": ["neurons=0.5"]}, "method-for-heads-alone", "--prune heads"),
    ({"recover": "distill", "calibration_rows": 10}, "too-few-rows-to-train", "16"),
    ({"method": "taylor", "keep": ["tokens=0.5"]}, "method-without-tokens", "second-order"),
    ({"method": "subset", "keep": ["tokens=0.5"]}, "method-without-tokens", "subset"),
    ({"floor": "tokens=0.5"}, WITHOUT_USE, "--prune all"),
    # Budgets that are measured, shares and layers.
    (SPEED, EXCLUDE, "--no-bench"),
    (SPEED | TIMED | {"floor": "4", "prune": "heads"}, "floors-too-high", "12"),
    (SPEED | TIMED | {"drop_layers": "search", "probe_minutes": 5}, WITHOUT_USE, "--recover"),
    (SPEED | TIMED | {"probe_minutes": 5}, WITHOUT_USE, "--drop-layers search"),
    (SPEED | TIMED | {"at_engine": "openvino"}, "engine-not-exported", "--engines"),
    (NO_KEEP | {"max_drop": "0.3", "test": None}, "test-rows-missing", "--max-drop 0.3"),
    (NO_KEEP | {"max_drop": "0.3", "method": "subset"}, EXCLUDE, "taylor"),
    (NO_KEEP | {"max_drop": "1", "test_rows": 15}, "too-few-rows", "15, of which 7 would be"),
    (NO_KEEP | {"macs": "0.9,0.1", "prune": "heads"}, "macs-unreachable", "0.1"),
    (LAYERS | {"drop_layers": "decoder=1"}, None, "the model has no 'decoder'"),
    (TEXT | {"distill_text": "EMPTY"}, "distill-text-empty", "empty.txt"),
    ({"recover": "distill", "distill_start": "DENSE"}, "units-file-malformed", "units.json"),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(checkpoints, finished, tmp_path_factory) -> dict[str, str]:
    """Words of the tables -> paths."""
    folder = tmp_path_factory.mktemp("files")
    contents = {"text": b"w3 w4\n", "empty": b"\n\n"}
    for name, data in contents.items():
        (folder / f"{name}.txt").write_bytes(data)
    words = {name.upper(): str(folder / f"{name}.txt") for name in contents}
    return words | {"PRUNED": str(finished), "DENSE": str(checkpoints["bert"])}


@pytest.mark.slow
@pytest.mark.parametrize(("options", "problem", "detail"), REFUSED)
def test_runs_are_refused_before_anything_is_written(
    inputs, files, tmp_path: Path, options, problem, detail
):
    usual = {"model": "DENSE", "keep": ["0.5"], "bench": False, "device": "cpu"}
    given = {k: files.get(x, x) if isinstance(x, str) else x
             for k, x in (inputs | usual | options).items()}  # fmt: skip
    with pytest.raises(CompressError) as caught:
        run(recipe(**given), tmp_path / "out")
    assert problem in (None, caught.value.id), str(caught.value)
    assert detail in str(caught.value)
    assert not (tmp_path / "out").exists()


RUN, EXPORT = ("run", "--keep", "0.5", "--device", "cpu"), ("export", "-m", "MODEL")
WITHOUT_KEEP, NOT_UNITS = ("run", "--device", "cpu"), "tokens-not-units"
# Task, words of a command for its model and rows, id of the error, and what its message has in it.
COMMANDS = [
    ("embedding", (*RUN, "--method", "ablation"), "method-for-other-tasks", "embedding"),
    ("embedding", (*RUN, "--test", "CALIBRATION"), "pairs-missing", ""),
    ("embedding", (*RUN, "--max-metric-drop", "ndcg@10=1"), "metric-of-another-task",
     "ndcg@10 is not measured on"),
    ("embedding", (*EXPORT, "--layout", "ctranslate2"), "layout-not-for-task", ""),
    ("embedding", (*WITHOUT_KEEP, "--keep", "tokens=0.5"), NOT_UNITS, "--keep tokens=0.5: "),
    ("embedding", (*WITHOUT_KEEP, "--macs", "0.5", "--prune", "all"), NOT_UNITS, "since its head"),
    ("question-answering", (*WITHOUT_KEEP, "--max-drop", "1", "--floor", "tokens=0.5"), NOT_UNITS,
     "--floor tokens=0.5: "),
    ("summarization", (*WITHOUT_KEEP, "--remove", "tokens=0.5"), NOT_UNITS, "since its decoder"),
    ("embedding", ("score", "-m", "MODEL", "--calibration", "CALIBRATION", "--prune", "tokens"),
     NOT_UNITS, "--prune tokens: "),
    ("embedding", (*RUN, "--engines", "onnxruntime,ctranslate2"), "engine-not-for-task", ""),
    ("question-answering", (*RUN, "--recover", "distill", "--distill-text", "CALIBRATION"),
     "text-for-other-tasks", ""),
    ("summarization", (*RUN, "--recover", "distill", "--distill-text", "CALIBRATION",
                     "--distill-augment", "2"), "augment-for-translators", "whole sentences"),
    ("question-answering", ("study", "heads", "-m", "MODEL", "--test", "TEST"),
     "study-for-other-tasks", ""),
    ("regression", (*RUN, "--task", "reranking"), "score-not-number", ""),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("task", "words", "problem", "detail"), COMMANDS)
def test_commands_are_refused_before_anything_is_written(
    task_run, tmp_path, task, words, problem, detail
):
    job, folder = RUNS[task], task_run(task)
    data = {"MODEL": "model", "CALIBRATION": job.calibration, "TEST": job.test}
    usual = ("-m", "MODEL", "--calibration", "CALIBRATION") if words[0] == "run" else ()
    usual += ("--test", "TEST") if words[0] == "run" and "--test" not in words else ()
    given = [folder / data[word] if word in data else word for word in (*words, *usual)]
    with pytest.raises(CompressError) as caught:
        invoke(*given, "-o", tmp_path / "out")
    assert caught.value.id == problem, str(caught.value)
    assert detail in str(caught.value)
    assert not (tmp_path / "out").exists()
