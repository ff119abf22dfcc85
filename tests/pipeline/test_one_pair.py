"""`--source-text` and `--target-text` of translators, through the command.

Expected translations are those of transformers with the whole checkpoint, which is given no
probability for tokens that decoders of the artifact do not score.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

import compressor
from compressor.report.schema import load_report
from compressor.runtime import Translator, collate
from tests.helpers.command_line import invoke
from tests.helpers.many_languages import (
    FAMILIES,
    SOURCE_TEXTS,
    SOURCES,
    TARGET_TEXTS,
    lines,
    plain,
    save_family,
    source_tokens,
    target_tokens,
    text_files,
    translations,
)

pytestmark = pytest.mark.slow


def pair_options(name: str, directory: Path) -> list[Any]:
    source, target = text_files(directory)
    return [*FAMILIES[name].flags, "--source-text", source.path, "--target-text", target.path]


def whole_model(name: str, directory: Path) -> tuple[Any, Any, list[str]]:
    """Model and tokenizer by transformers with a family's languages, and texts with its prefix."""
    model, tokenizer = plain(directory)
    family, prefix = FAMILIES[name], ""
    source, target = family.languages
    if hasattr(tokenizer, "src_lang"):
        tokenizer.src_lang = source
        code = {token: i for i, token in source_tokens(tokenizer).items()}
        number = code.get(target, code.get(f"__{target}__"))
        start = (
            "decoder_start_token_id" if family.architecture == "mbart" else "forced_bos_token_id"
        )
        setattr(model.generation_config, start, number)
    elif target is not None:
        prefix = f">>{target}<< "
    elif family.options:
        prefix = family.options[1]
    return model, tokenizer, [f"{prefix}{text}" for text in SOURCE_TEXTS[:12]]


def by_runtime(translator: Translator, tokens: dict[int, str], beams: int) -> list[list[str]]:
    artifact = translator.artifact
    encoded = translator.encode(SOURCE_TEXTS[:12])
    batch = collate(encoded, artifact.pad_token_id, artifact.inputs)
    rows = translator.generate(batch, num_beams=beams, max_new_tokens=10)
    return [[tokens[i] for i in row] for row in rows]


def without_start(rows: list[list[str]], tokenizer: Any, starts_with_pad: bool) -> list[list[str]]:
    # `translations` leaves padding out, from which some models start.
    return rows if starts_with_pad else [row[1:] for row in rows]


@pytest.mark.parametrize("name", ["nllb", "t5", "marian-codes"])
def test_graphs_translate_as_the_whole_model(name: str, tmp_path: Path):
    dense, out = save_family(name, tmp_path / "dense"), tmp_path / "out"
    also = ["--precision", "fp32,int8", "--engines", "onnxruntime,ctranslate2"]
    options = also if name == "nllb" else []
    invoke("export", "-m", dense, *pair_options(name, tmp_path), "-o", out, *options)
    invoke("verify", out)
    _, cut = plain(out)
    scored = json.loads((out / "onnx/output_tokens.json").read_text(encoding="utf-8"))
    tokens = target_tokens(cut)
    kept = {tokens[i] for i in scored}
    assert len(kept) < len(tokens)
    model, tokenizer, texts = whole_model(name, dense)
    pads = model.generation_config.decoder_start_token_id == tokenizer.pad_token_id
    engines = ["onnxruntime", "ctranslate2"] if name == "nllb" else ["onnxruntime"]
    for beams in (1, 3):
        rows = translations(model, tokenizer, texts, kept, beams)
        expected = without_start(rows, tokenizer, pads)
        for engine in engines if beams == 1 else engines[:1]:
            translator = Translator(out, threads=1, precision="fp32", engine=engine)
            assert by_runtime(translator, tokens, beams) == expected
    if name == "nllb":
        invoke("export", "-m", dense, *FAMILIES[name].flags, "-o", tmp_path / "whole", *also[:2])
        small, large = (
            sum(x.stat().st_size for x in (path / "onnx").glob("*.int8.onnx_data"))
            for path in (out, tmp_path / "whole")
        )
        assert small < large / 2
        saved = [(path / "model.safetensors").stat().st_size for path in (out, dense)]
        assert saved[0] < 0.75 * saved[1]


def test_ctranslate2_has_a_vocabulary_for_each_side(tmp_path: Path):
    import ctranslate2

    dense, out = save_family("marian-two", tmp_path / "dense"), tmp_path / "out"
    options = pair_options("marian-two", tmp_path)
    invoke("export", "-m", dense, "--layout", "ctranslate2", *options, "-o", out)
    tokenizer = transformers.MarianTokenizer.from_pretrained(out)
    assert len(tokenizer.encoder) < len(plain(dense)[1].encoder) / 2
    model, whole, texts = whole_model("marian-two", dense)
    kept = {*target_tokens(tokenizer).values()}
    expected = translations(model, whole, texts, kept, beams=1)
    translator = ctranslate2.Translator(str(out), intra_threads=1)
    sources = {i: token for token, i in tokenizer.encoder.items()}
    tokens = [[sources[i] for i in row] for row in tokenizer(texts)["input_ids"]]
    found = translator.translate_batch(tokens, beam_size=1, max_decoding_length=10)
    assert [x.hypotheses[0] for x in found] == [[t for t in r if t != "</s>"] for r in expected]


def test_a_run_removes_units_of_the_smaller_model(tmp_path: Path):
    """It learns from the whole model's translations, compares with it, and says what is gone."""
    dense, out = save_family("nllb", tmp_path / "dense"), tmp_path / "out"
    pairs = zip(SOURCE_TEXTS, TARGET_TEXTS, strict=True)
    rows = "".join(f"{a}\t{b}\n" for a, b in pairs)
    (tmp_path / "rows.tsv").write_text(f"source\ttarget\n{rows}", encoding="utf-8")
    (tmp_path / "more.txt").write_text("\n".join(lines(SOURCES, 40, 9)) + "\n", encoding="utf-8")
    invoke(
        "run", "-m", dense, *pair_options("nllb", tmp_path), "--keep", "0.5",
        "--keep-languages", "fra_Latn", "--recover", "reconstruct+distill",
        "--distill-text", tmp_path / "more.txt", "--distill-steps", "2", "--no-bench",
        "--calibration", tmp_path / "rows.tsv", "--test", tmp_path / "rows.tsv", "-o", out,
    )  # fmt: skip
    invoke("verify", out)
    report = load_report(out / "report.json")
    (variant,) = report.variants
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert {*tokenizer.extra_special_tokens} == {"eng_Latn", "deu_Latn", "fra_Latn"}
    model: Any = compressor.load(out)
    whole = json.loads((dense / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    assert (report.dense.embedding_rows, variant.embedding_rows) == (whole, len(tokenizer))
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)
    assert variant.embedding_bytes == 4 * 32 * len(tokenizer)
    assert "fewer tokens translate as all" in [check.name for check in variant.checks]
    assert "fewer tokens translate as all" not in [check.name for check in report.dense.checks]
    gone = 32 * (whole - len(tokenizer))
    assert f"{gone:,} weights" in (out / "report.md").read_text(encoding="utf-8")


def test_inspect_says_what_a_pair_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name, pair in (
        ("nllb", "--source-language CODE --target-language CODE"),
        ("marian-codes", "--target-language CODE"),
    ):
        dense = save_family(name, tmp_path / name)
        capsys.readouterr()
        invoke("inspect", dense)
        told = capsys.readouterr().out
        command = f"compress export -m {dense} {pair} --source-text FILE --target-text FILE"
        assert command in told
        invoke("inspect", dense, "--json")
        facts = json.loads(capsys.readouterr().out)
        table = plain(dense)[0].get_input_embeddings().weight
        assert (facts["tokens"], facts["token_parameters"]) == (len(table), table.numel())
        share = facts["token_parameters"] / facts["parameters"]
        assert f"{len(table):,} tokens have {share:.0%} of the parameters" in " ".join(told.split())
    dense = save_family("marian", tmp_path / "one-language")
    invoke("inspect", dense)
    assert "--source-text" not in capsys.readouterr().out
