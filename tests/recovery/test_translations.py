"""The file of translations: made in chunks, and the same however often it was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from compressor.recovery import translations as module
from compressor.recovery.translations import translate_lines
from compressor.training.text import TextLines


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ROWS", 10)


def lines_of(tmp_path: Path, count: int = 35) -> TextLines:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"sentence {i}\n" for i in range(count)), encoding="utf-8")
    return TextLines(path)


class Translator:
    """Answers depend on the chunk, as a model's do by rounding; may be stopped."""

    def __init__(self, chunks: int | None = None) -> None:
        self.chunks, self.seen = chunks, 0

    def __call__(self, texts: Sequence[str]) -> list[str]:
        if self.chunks is not None and self.seen >= 10 * self.chunks:
            raise KeyboardInterrupt
        self.seen += len(texts)
        return [f"<{text}> of {len(texts)} from {texts[0]}" for text in texts]


@pytest.mark.parametrize("torn", [b"", b"<sentence 20> of 10 from sentence 20\n<sente", b"\xc3"])
def test_a_stopped_one_goes_on_and_ends_the_same(tmp_path: Path, torn: bytes):
    """What was written of the third chunk is dropped, whole lines included."""
    lines, whole = lines_of(tmp_path), tmp_path / "whole.txt"
    shown: list[tuple[int, int]] = []
    translate_lines(lines, whole, Translator(), key="a", progress=lambda *x: shown.append(x))
    assert shown == [(0, 35), (10, 35), (20, 35), (30, 35), (35, 35)]
    found = whole.read_text(encoding="utf-8").splitlines()
    assert len(found) == 35
    assert found[34] == "<sentence 34> of 5 from sentence 30"
    output = tmp_path / "out" / "translations.txt"
    with pytest.raises(KeyboardInterrupt):
        translate_lines(lines, output, Translator(2), key="a")
    assert not output.exists()
    (partial,) = output.parent.glob("*.partial")
    with partial.open("ab") as file:
        file.write(torn)
    other, rest = Translator(), Translator()
    translate_lines(lines, output, other, key="b")  # another text or model
    assert other.seen == 35
    translate_lines(lines, output, rest, key="a")
    assert rest.seen == 15
    assert output.read_bytes() == whole.read_bytes()


def test_a_translation_stays_one_line(tmp_path: Path):
    output = tmp_path / "translations.txt"
    answers = {"sentence 0": "a\nb\r\nc", "sentence 1": "", "sentence 2": "d\u2028e"}
    lines = lines_of(tmp_path, 3)
    translate_lines(lines, output, lambda texts: [answers[text] for text in texts])
    assert TextLines(output, blank=True).block(0) == [("a b  c",), ("",), ("d\u2028e",)]
