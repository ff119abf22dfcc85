"""What is taken from a checkpoint's own model card."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import ModelCard, ModelCardData

from compressor.model.card import CardFacts, read_card


def test_a_card_that_the_hubs_library_writes_is_read(tmp_path: Path):
    data = ModelCardData(
        license="other", license_name="mine", license_link="https://a.b/LICENSE",
        language=["en", "no"], base_model=["acme/one", "acme/two"], tags=["x"],
    )  # fmt: skip
    ModelCard(f"---\n{data.to_yaml()}\n---\n# Title\n").save(tmp_path / "README.md")
    assert read_card(tmp_path) == CardFacts(
        "other", "mine", "https://a.b/LICENSE", ("en", "no"), ("acme/one", "acme/two")
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# No front matter\n\n---\nlicense: mit\n---\n", CardFacts()),
        ("---\nlicense: [\n---\n", CardFacts()),
        ("---\n- license\n---\n", CardFacts()),
        ("---\nlicense: 3\nlanguage: {en: de}\nbase_model: [1, '']\n---\n", CardFacts()),
        ("---\r\nlicense: mit\r\nlanguage: no\r\n---\r\n", CardFacts("mit", language=("no",))),
    ],
)
def test_a_card_that_says_nothing_is_no_error(text: str, expected, tmp_path: Path):
    assert read_card(tmp_path) == CardFacts()  # there is none
    (tmp_path / "README.md").write_bytes(text.encode())
    assert read_card(tmp_path) == expected
