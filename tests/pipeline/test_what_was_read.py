"""Commands say which columns they read before they compute; translators know their languages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from compressor.errors import InputError
from compressor.example import model as bundled
from compressor.model.checkpoint import open_checkpoint
from compressor.model.languages import direction
from compressor.runtime.opening import read_artifact
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.files import tsv

ROWS = list(zip(toy.sentences(12), toy.sentences(12, seed=1), strict=True))


def write(path: Path, header: str, rows: list[tuple[str, ...]]) -> Path:
    path.write_text(tsv(rows, tuple(header.split())), encoding="utf-8")
    return path


@pytest.mark.slow
def test_rows_of_a_translator_are_read_by_its_languages(tmp_path: Path, capsys) -> None:
    """Whatever their order, which the answers show; export and evaluate say so first."""
    whole, out = toy.marian_with_pieces(tmp_path / "whole"), tmp_path / "out"
    model = toy.first_layers(whole, tmp_path / "model")
    config = json.loads((model / "tokenizer_config.json").read_text("utf-8"))
    config |= {"source_lang": "en", "target_lang": "de"}
    (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    turned = write(tmp_path / "turned.tsv", "de id en", [(t, "7", s) for s, t in ROWS])
    said = f"{turned}: 12 rows; source 'en', target 'de'; not read: 'id'\n"
    capsys.readouterr()
    invoke("export", "-m", model, "-o", out, "--calibration", turned)
    assert capsys.readouterr().err.startswith(said)
    assert read_artifact(out).direction == ("en", "de")
    scores = []
    for table in (turned, write(tmp_path / "plain.tsv", "source target", ROWS)):
        invoke("evaluate", out, "--test", table, "--device", "cpu")
        captured = capsys.readouterr()
        scores.append(captured.out)
        assert re.match(rf"{re.escape(str(table))}: 12 rows; source .*\nevaluating", captured.err)
    assert scores[0] == scores[1]
    with raises(InputError, "columns-unclear"):
        invoke("evaluate", out, "--test", write(tmp_path / "other.tsv", "fr de", ROWS))


def test_the_code_before_a_source_says_the_target() -> None:
    tokenizer = SimpleNamespace(
        source_lang="en", target_lang="ROMANCE", supported_language_codes=[">>fra<<", ">>spa<<"],
        init_kwargs={"source_prefix": ">>fra<< please: "},
    )  # fmt: skip
    assert direction(tokenizer) == ("en", "fra")
    tokenizer.init_kwargs = {"source_prefix": ""}
    assert direction(tokenizer) == ("en", None)


def test_the_languages_of_the_bundled_translator() -> None:
    assert direction(open_checkpoint(str(bundled())).tokenizer) == ("en", "de")
