"""One hash of all that a run depends on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from compressor.request import cache_key as module
from compressor.request.cache_key import cache_key
from compressor.request.recipe import make_recipe
from tests.helpers import toy


@pytest.fixture
def project(once, tmp_path) -> Path:
    """A model and its rows, which may be changed."""

    def make(directory: Path) -> None:
        toy.classifier(directory / "model")
        toy.labels_file(directory / "rows.tsv")

    return shutil.copytree(once("cache-key", make), tmp_path / "project")


def key(project: Path, **options: Any) -> str:
    rows = str(project / "rows.tsv")
    given = {"model": str(project / "model"), "calibration": rows, "test": rows, "keep": ["0.5"]}
    return cache_key(make_recipe(**given | options))


def test_places_rules_and_checks_are_not_part_of_it(project, tmp_path):
    moved = shutil.copytree(project, tmp_path / "elsewhere")
    assert key(moved) == key(project)
    assert key(project, max_metric_drop=["accuracy=1"], max_size_mb=5, verify=False) == key(project)


def test_options_data_weights_and_versions_are(project, monkeypatch):
    keys = [key(project), key(project, keep=["0.25"]), key(project, test=None)]
    keys.append(key(project, calibration=None, method="magnitude", recover="none"))
    with (project / "rows.tsv").open("a") as file:
        file.write("one more row\tLABEL_0\n")
    keys.append(key(project))
    settings = project / "model" / "config.json"
    settings.write_text(settings.read_text("utf-8") + "\n", "utf-8")
    keys.append(key(project))
    monkeypatch.setattr(module, "versions", lambda: {"torch": "99"})
    keys.append(key(project))
    assert len(set(keys)) == len(keys)
    assert all(len(found) == 64 for found in keys)


def test_parallel_texts_are_two_files(project):
    for name in ("text.en", "text.de"):
        (project / name).write_text("a\n", "utf-8")
    spec = f"{project / 'text.en'},{project / 'text.de'}"
    before = key(project, test=spec)
    (project / "text.de").write_text("b\n", "utf-8")
    assert key(project, test=spec) != before


def test_of_a_hub_model_it_is_the_commit(project, monkeypatch):
    commits = {"main": "aa", None: "aa", "v2": "bb"}
    monkeypatch.setattr(module, "revision_of", lambda model, revision: commits[revision])
    hub = {"model": "acme/bert"}
    assert key(project, **hub) == key(project, **hub, revision="main")
    assert key(project, **hub) != key(project, **hub, revision="v2")


def test_texts_count_by_content_and_by_what_they_are_for(project, tmp_path):
    texts = [tmp_path / name for name in ("a.txt", "b.txt", "other.txt")]
    for path, text in zip(texts, ("w5\n", "w5\n", "w6\n"), strict=True):
        path.write_text(text, encoding="utf-8")
    one, same, other = (
        key(project, recover="distill", distill_text=str(path), target_text=None) for path in texts
    )
    assert one == same != other
    assert key(project, recover="distill", target_text=str(texts[0])) not in (one, other)
