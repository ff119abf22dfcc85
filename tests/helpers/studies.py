"""Studies of toy checkpoints, run in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu

from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.study import STUDIES, run_study
from compressor.study.output import PREFIX, render_text
from compressor.tasks import TASKS
from tests.helpers.recipes import request

RESAMPLES = 200


@dataclass(frozen=True)
class Toy:
    """A toy checkpoint with data it knows."""

    model: Path
    calibration: Path
    test: Path
    task: str

    def answers(self, without: list[tuple[str, int]]) -> list[str]:
        """What the physically pruned model says to each test row alone, by transformers."""
        checkpoint = open_checkpoint(str(self.model))
        mask = Mask.full(checkpoint.layers).without(without)
        model = prune(checkpoint.model, checkpoint.layers, mask)
        found = []
        for text in TASKS[self.task].read_rows(self.test).sources:
            inputs = checkpoint.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            if self.task == "translation":
                ids = model.generate(**inputs, num_beams=1, do_sample=False)[0]
                found.append(checkpoint.tokenizer.decode(ids, skip_special_tokens=True))
            else:
                found.append(f"LABEL_{int(model(**inputs).logits.argmax())}")
        return found

    def value(self, answers: list[str]) -> float:
        """BLEU or accuracy of answers to the test rows."""
        references = TASKS[self.task].read_rows(self.test).targets
        if self.task == "translation":
            return sacrebleu.corpus_bleu(answers, [references]).score
        return 100 * float(np.mean([a == b for a, b in zip(answers, references, strict=True)]))


def short_answers(directory: Path) -> Path:
    """The checkpoint with translations of at most 7 tokens, so that tests are quick."""
    path = directory / "generation_config.json"
    if path.exists():
        settings = json.loads(path.read_text(encoding="utf-8")) | {"max_length": 8}
        path.write_text(json.dumps(settings), encoding="utf-8")
    return directory


def run(name: str, output: Path, **given: Any) -> dict[str, Any]:
    """Run a study in this process; its data, after checking what is always so."""
    options = {"device": "cpu"}
    options |= {k: v if isinstance(v, list) else str(v) for k, v in given.items()}
    if "test" in given:
        options |= {"resamples": RESAMPLES}
    result = run_study(request(STUDIES[name], **options), output)
    written = {path.name for path in output.iterdir() if path.is_file()}
    assert {f"{PREFIX}{name}.{suffix}" for suffix in ("json", "md", "png", "svg")} <= written
    data = json.loads((output / f"{PREFIX}{name}.json").read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(result.data))
    page = (output / f"{PREFIX}{name}.md").read_text(encoding="utf-8")
    assert page.startswith("# ")
    assert f"{PREFIX}{name}.png" in page
    assert all(sentence in render_text(result) for sentence in result.sentences)
    return data
