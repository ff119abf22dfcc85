"""Absurd values of options and recipes: status 2, or 4 for files, before anything starts."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from compressor.commands import invoke
from compressor.errors import UsageError
from compressor.pipeline.stream_lines import Lines
from compressor.request.recipe import make_recipe
from tests.helpers.errors import raises


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("seed: " + "9" * 5000, "recipe-not-yaml"),
        ("[" * 100_000, "recipe-nested"),
        ("- " * 100_000, "recipe-nested"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "recipe-not-yaml"),
        ("seed: !!python/object/apply:os.getcwd []", "recipe-not-yaml"),
        ("- a", "recipe-not-yaml"),
        ("\x00", "recipe-not-yaml"),
        ('model: "a\\udcff"', "recipe-not-yaml"),
    ],
)
def test_a_recipe_that_is_none_is_told(text, id, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(text, "utf-8")
    began = time.monotonic()
    with raises(UsageError, id) as caught:
        make_recipe(file, model="m", keep=["0.5"], test="t")
    assert time.monotonic() - began < 5
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "-m", "m", "--test", "t.tsv", "--keep", "0.5", "-o", "out", "-c", "PIPE"],
        ["report", "PIPE", "-o", "out"],
        ["gate", "PIPE", "--max-metric-drop", "bleu=1"],
        ["prune", "-m", "m", "--scores", "PIPE", "--keep", "0.5", "-o", "out"],
    ],
)
def test_a_pipe_without_a_writer_ends_with_status_4(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("compressor.storage.input_files.WRITER_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)
    os.mkfifo("PIPE")
    began = time.monotonic()
    assert invoke(words) == 4
    assert time.monotonic() - began < 20
    assert "pipe without a writer" in capsys.readouterr().err


def test_a_pipe_with_a_writer_is_read(tmp_path):
    pipe = tmp_path / "lines"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("one\ntwo\n", "utf-8"))
    writer.start()
    assert list(Lines([pipe])) == ["one", "two"]
    writer.join()


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": ' + "9" * 5000 + "}", "NaN", "5"])
def test_a_line_of_json_that_is_no_row_is_told_by_its_number(line, tmp_path):
    from compressor.errors import InputError
    from compressor.tasks import TASKS

    file = tmp_path / "rows.jsonl"
    good = json.dumps({"text": "a", "label": "b"})
    Path(file).write_text(f"{good}\n{line}\n", "utf-8")
    with pytest.raises(InputError) as caught:
        TASKS["classification"].read_rows(str(file), labels=["a", "b"], minimum=2)
    assert f"{file}:2" in str(caught.value)
