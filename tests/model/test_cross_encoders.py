"""Cross-encoders as sentence-transformers saves them, and has saved them, against its scores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint, save_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.runtime import Reranker
from tests.helpers.command_line import invoke
from tests.helpers.damaged_checkpoints import configure
from tests.helpers.errors import raises
from tests.helpers.score_models import save_scorer
from tests.helpers.tiny import facts, uneven_mask

PAIRS = [("w3 w4", "w5 w6 w7"), ("w8", "w9 w10"), ("w3 w4 " * 20, "w5"), ("w11 w12", "w13 " * 40)]
IDENTITY = nn.Identity


def save_newest(directory: Path, outputs: int = 1, **options: Any) -> Path:
    plain = save_scorer(directory.with_name(f"{directory.name}-plain"), outputs)
    CrossEncoder(str(plain), device="cpu", **options).save(str(directory), create_model_card=False)
    return directory


def save_earlier(directory: Path, **marks: Any) -> Path:
    """As before version 5.4: without `modules.json`, what is said stands in config.json."""
    save_scorer(directory)
    configure(**marks)(directory)
    return directory


def without_activation(directory: Path) -> Path:
    save_newest(directory)
    path = directory / "config_sentence_transformers.json"
    path.write_text(json.dumps({"model_type": "CrossEncoder", "prompts": {}}), "utf-8")
    return directory


PATH = f"{IDENTITY.__module__}.{IDENTITY.__name__}"
CASES: dict[str, Callable[[Path], Path]] = {
    "identity": lambda x: save_newest(x, activation_fn=IDENTITY()),
    "shorter": lambda x: save_newest(x, max_length=9),
    "no activation in the newest file": without_activation,
    "version 3": lambda x: save_earlier(x, sbert_ce_default_activation_function=PATH),
    "version 4": lambda x: save_earlier(x, sentence_transformers={"activation_fn": PATH}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_saved_gives_the_scores_of_the_package(case: str, tmp_path):
    """Without a unit less the very same ones, and pruned those that this package gives."""
    model = CASES[case](tmp_path / "m")
    package = CrossEncoder(str(model), device="cpu")
    expected = package.predict(PAIRS)
    opened = open_checkpoint(str(model))
    assert opened.task == "reranking"
    assert opened.max_source_tokens == package.max_seq_length
    for name, mask in (("full", Mask.full(opened.layers)), ("cut", uneven_mask(opened.layers))):
        kept = prune(opened.model, opened.layers, mask)
        save_checkpoint(opened, kept, facts(opened.layers, mask), tmp_path / name)
        out = CrossEncoder(str(tmp_path / name), device="cpu", trust_remote_code=True)
        assert type(out.activation_fn) is type(package.activation_fn)
        if name == "full":
            np.testing.assert_array_equal(out.predict(PAIRS), expected)
        else:
            assert abs(out.predict(PAIRS) - expected).max() > 1e-3


@pytest.mark.slow
def test_the_runtime_gives_the_scores_of_the_package(tmp_path, capsys):
    model = CASES["shorter"](tmp_path / "m")
    package = CrossEncoder(str(model), device="cpu")
    expected = package.predict(PAIRS)
    invoke("export", "-m", model, "-o", tmp_path / "out", "--quiet")
    reranker = Reranker(tmp_path / "out", verify=False)
    scores = reranker.scores(*map(list, zip(*PAIRS, strict=True)))
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    theirs, ours = (x.rank("w3", ["w4 w5", "w6", "w7"]) for x in (package, reranker))
    assert [x.number for x in ours] == [x["corpus_id"] for x in theirs]
    np.testing.assert_allclose([x.score for x in ours], [x["score"] for x in theirs], atol=1e-5)


def test_what_is_not_followed_is_refused(tmp_path):
    odd = save_newest(tmp_path / "odd", activation_fn=nn.Tanh())
    with raises(InputError, "activation-unsupported"):
        invoke("inspect", odd)
    prompts = {"prompts": {"query": "w5: "}, "default_prompt_name": "query"}
    begun = save_newest(tmp_path / "begun", **prompts)
    with raises(InputError, "setting-unsupported"):
        open_checkpoint(str(begun))
    with raises(UsageError, "task-of-another-model"):
        invoke("inspect", odd, "--task", "embedding")
    unnamed = save_newest(tmp_path / "unnamed")
    (unnamed / "sentence_bert_config.json").unlink()
    with raises(InputError, "setting-unsupported"):
        open_checkpoint(str(unnamed))
    # Without the package's files it is an ordinary classifier with one output.
    for path in unnamed.glob("*sentence_transformers.json"):
        path.unlink()
    (unnamed / "modules.json").unlink()
    assert open_checkpoint(str(unnamed)).task == "regression"
