"""One pair of languages: `--source-text` and `--target-text` cut a translator's vocabulary.

Expected tokens and translations are those of transformers with the whole checkpoint, which is given
no probability for tokens that are gone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from compressor.errors import InputError, UsageError, VerificationError
from compressor.export.cut_vocabulary import (
    CutVocabulary,
    check_cut,
    check_translations,
    cut_vocabulary,
)
from compressor.model.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from compressor.model.kept_tokens import KeptIds
from compressor.model.languages import source_prefix
from compressor.model.surgery import prune
from compressor.model.token_tables import count_tokens
from compressor.options.inputs import load
from compressor.options.sections import ModelSection
from compressor.tasks.texts import TextFile
from tests.helpers.damaged_checkpoints import configure
from tests.helpers.errors import raises
from tests.helpers.many_languages import (
    FAMILIES,
    SOURCE_TEXTS,
    TARGET_TEXTS,
    UNCOVERED,
    plain,
    save_family,
    source_tokens,
    target_tokens,
    text_files,
    translations,
)
from tests.helpers.tiny import facts, uneven_mask


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Directory of a checkpoint of a family, made once; it is not to be changed."""
    root, made = tmp_path_factory.mktemp("families"), dict[str, Path]()

    def directory(name: str) -> Path:
        if name not in made:
            made[name] = save_family(name, root / name)
        return made[name]

    return directory


def cut_pair(
    whole: Checkpoint, source: TextFile, target: TextFile, languages: Sequence[str] = ()
) -> tuple[Checkpoint, KeptIds]:
    """The checkpoint with fewer tokens, and which these are."""
    cut = cut_vocabulary(whole, source, target, languages)
    assert cut.kept is not None
    return cut.checkpoint, cut.kept


def opened(name: str, directory: Path) -> Checkpoint:
    """With the languages, or the prefix, of the family."""
    family = FAMILIES[name]
    source, target = family.languages
    prefix = None if target else (family.options or ("", ""))[1]
    return load(
        ModelSection(
            path=str(directory), source_language=source, target_language=target, prefix=prefix
        )
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_covered_texts_are_translated_as_before(name: str, families: Any, tmp_path: Path):
    """By transformers, which opens what is saved without code of this package."""
    directory = families(name)
    whole = opened(name, directory)
    made = cut_vocabulary(whole, *text_files(tmp_path))
    cut, checks = made.checkpoint, check_cut(made)
    assert count_tokens(cut.model)[0] < 0.75 * count_tokens(whole.model)[0]
    save_checkpoint(cut, cut.model, None, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.py"))
    assert not (tmp_path / "out/units.json").exists()

    (model, tokenizer), (dense, all_tokens) = plain(tmp_path / "out"), plain(directory)
    source, target = FAMILIES[name].languages
    if source is not None:
        all_tokens.src_lang, all_tokens.tgt_lang = source, target
        tokenizer.tgt_lang = target  # which some classes do not read from their settings
        assert tokenizer.src_lang == source
    prefix = source_prefix(whole.tokenizer)
    texts = [f"{prefix}{text}" for text in SOURCE_TEXTS]
    for names_of, options in (
        (source_tokens, {"text": texts}),
        (target_tokens, {"text_target": TARGET_TEXTS}),
    ):
        expected, actual = (
            [[*map(names_of(x).get, row)] for row in x(**options)["input_ids"]]
            for x in (all_tokens, tokenizer)
        )
        assert actual == expected
    # As with all tokens, of which the others get no probability.
    settings = whole.model.generation_config.to_dict()
    for option in ("forced_bos_token_id", "decoder_start_token_id"):
        setattr(dense.generation_config, option, settings[option])
    kept = {*target_tokens(tokenizer).values()}
    for beams in (1, 3):
        expected = translations(dense, all_tokens, texts[:12], kept, beams)
        assert translations(model, tokenizer, texts[:12], kept, beams) == expected
    assert "of 16 lines with 1 and 4 beams" in checks[0].detail


@pytest.mark.parametrize("name", FAMILIES)
def test_other_texts_are_shorter_pieces(name: str, families: Any, tmp_path: Path):
    """Of which the same text is put together; nothing becomes unknown that was not."""
    whole = opened(name, families(name))
    cut, _ = cut_pair(whole, *text_files(tmp_path))
    longer = 0
    for text in UNCOVERED:
        before, after = (x.tokenizer(text)["input_ids"] for x in (whole, cut))
        assert len(after) >= len(before)
        longer += len(after) > len(before)
        unknown = [x.tokenizer.unk_token_id for x in (whole, cut)]
        assert after.count(unknown[1]) <= before.count(unknown[0])
        # Tokenizers with two vocabularies decode targets alone.
        if unknown[0] not in before and not hasattr(whole.tokenizer, "target_encoder"):
            decoded = [
                x.tokenizer.decode(ids, skip_special_tokens=True)
                for x, ids in ((whole, before), (cut, after))
            ]
            assert decoded[1] == decoded[0]
    assert longer > 5
    batch = cut.tokenizer(UNCOVERED, padding=True, truncation=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    cut.model.generate(**batch, max_new_tokens=4)


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_and_settings_go_with_their_tokens(name: str, families: Any, tmp_path: Path):
    whole = opened(name, families(name))
    model: Any = whole.model
    banned = [x for x in target_tokens(whole.tokenizer) if x not in whole.tokenizer.all_special_ids]
    model.generation_config.suppress_tokens = [whole.tokenizer.pad_token_id, *banned]
    model.config.task_specific_params = {"translation": {"eos_token_id": model.config.eos_token_id}}
    cut, kept = cut_pair(whole, *text_files(tmp_path))
    smaller: Any = cut.model
    old, new = (
        (x.get_encoder().embed_tokens, x.get_decoder().embed_tokens, x.lm_head)
        for x in (model, smaller)
    )
    for table, cut_table, ids in zip(
        old, new, (kept.sources, kept.targets, kept.targets), strict=True
    ):
        torch.testing.assert_close(cut_table.weight, table.weight[ids], rtol=0, atol=0)
    assert len({id(x.weight) for x in new}) == len({id(x.weight) for x in old})
    if hasattr(model, "final_logits_bias"):
        bias = model.final_logits_bias[:, kept.targets]
        torch.testing.assert_close(smaller.final_logits_bias, bias, rtol=0, atol=0)
    assert smaller.config.vocab_size == len(kept.sources)
    numbers = {i: place for place, i in enumerate(kept.targets)}
    before, after = model.generation_config, smaller.generation_config
    for setting in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        assert getattr(after, setting) == numbers[getattr(before, setting)]
        assert getattr(smaller.config, setting) == numbers[getattr(model.config, setting)]
    if before.forced_bos_token_id is not None:
        assert after.forced_bos_token_id == numbers[before.forced_bos_token_id]
    if before.bad_words_ids:
        assert after.bad_words_ids == [[numbers[i] for i in word] for word in before.bad_words_ids]
    assert after.suppress_tokens == [numbers[i] for i in before.suppress_tokens if i in numbers]
    assert smaller.config.task_specific_params == {
        "translation": {"eos_token_id": smaller.config.eos_token_id}
    }
    # The whole model is as it was.
    assert model.config.vocab_size > len(kept.sources)
    assert model.lm_head.weight.shape[0] == model.lm_head.out_features > len(kept.targets)


@pytest.mark.parametrize(
    ("name", "asked", "gone"),
    [("nllb", "fra_Latn", "spa_Latn"), ("marian-codes", "fra", "rus"), ("m2m100", "fr", None)],
)
def test_languages_that_are_asked_for_stay(
    name: str, asked: str, gone: str | None, families: Any, tmp_path: Path
):
    whole, files = opened(name, families(name)), text_files(tmp_path)
    (cut, _), (more, _) = cut_pair(whole, *files), cut_pair(whole, *files, [asked])

    def codes(checkpoint: Checkpoint) -> set[str]:
        tokenizer = checkpoint.tokenizer
        if name == "marian-codes":
            return {code[2:-2] for code in tokenizer.supported_language_codes}
        if name == "m2m100":
            return {*tokenizer.lang_code_to_id}
        return {*tokenizer.extra_special_tokens}

    pair = {x for x in FAMILIES[name].languages if x}
    if gone is None:  # its class lists all of its languages, and opens with all
        assert codes(cut) == codes(more) == codes(whole)
        return
    assert codes(cut) == pair
    assert codes(more) == {*pair, asked}
    assert gone in codes(whole)
    if name == "nllb":
        number = more.tokenizer.convert_tokens_to_ids(asked)
        row = more.model.get_input_embeddings().weight[number]  # type: ignore[operator]
        old = whole.tokenizer.convert_tokens_to_ids(asked)
        whole_row = whole.model.get_input_embeddings().weight[old]  # type: ignore[operator]
        torch.testing.assert_close(row, whole_row, rtol=0, atol=0)
    with raises(UsageError, "language-unknown"):
        cut_pair(whole, *files, ["xx_XX"])


def test_a_wrong_row_is_noticed(families: Any, tmp_path: Path):
    whole, (source, target) = opened("nllb", families("nllb")), text_files(tmp_path)
    cut = cut_vocabulary(whole, source, target)
    check_translations(whole, cut, source)
    table = cut.checkpoint.model.get_input_embeddings().weight  # type: ignore[operator]
    table.data[10:] = table.data[10:].roll(1, 0)
    with raises(VerificationError, "cut-vocabulary-differs"):
        check_translations(whole, cut, source)


def test_tokens_that_a_translation_lacks_are_counted(families: Any, tmp_path: Path):
    """Translations may be others where the whole model would use a token that is gone."""
    whole, (source, target) = opened("nllb", families("nllb")), text_files(tmp_path)
    model: Any = whole.model
    cut = cut_vocabulary(whole, source, target)
    assert cut.kept is not None
    everything = [*range(model.config.vocab_size)]
    uncut = CutVocabulary(whole, whole, KeptIds(everything, everything))
    same = check_translations(whole, uncut, source)
    assert same.detail.endswith("and 32 of 32 are those among all")
    gone = next(i for i in everything[200:] if i not in cut.kept.targets)
    hook = model.lm_head.register_forward_hook(
        lambda module, inputs, logits: logits.index_fill(-1, torch.tensor([gone]), 1e3)
    )
    others = check_translations(whole, cut, source)
    assert " 0 of 32 are those among all; the others have tokens" in others.detail
    hook.remove()


def test_what_cannot_be_cut(families: Any, tmp_path: Path):
    files = text_files(tmp_path)
    whole = opened("marian", families("marian"))
    whole.model.generation_config.forced_eos_token_id = 10_000  # type: ignore[union-attr]
    with raises(InputError, "tokenizer-cannot-be-cut"):
        cut_pair(whole, *files)
    two = opened("marian-two", families("marian-two"))
    model: Any = two.model
    model.get_decoder().embed_tokens.weight = model.get_encoder().embed_tokens.weight
    with raises(InputError, "tokenizer-cannot-be-cut"):
        cut_pair(two, *files)

    class CharacterTokenizer:
        is_fast = False

    with raises(InputError, "tokenizer-cannot-be-cut"):
        cut_pair(replace(two, tokenizer=CharacterTokenizer()), *files)


def test_padding_has_one_number_in_two_vocabularies(families: Any, tmp_path: Path):
    """Behind all pieces of either side, of which one text has far more."""
    whole, (source, target) = opened("marian-two", families("marian-two")), text_files(tmp_path)
    target.path.write_text(f"{TARGET_TEXTS[0]}\n", encoding="utf-8")
    assert whole.tokenizer.pad_token_id > 200
    cut, kept = cut_pair(whole, source, target)
    files = [cut.tokenizer.encoder, cut.tokenizer.target_encoder]
    assert files[0]["<pad>"] == files[1]["<pad>"] == cut.tokenizer.pad_token_id
    assert len(kept.sources) == len(kept.targets) == cut.model.config.pad_token_id + 1


def test_a_tokenizer_is_used_after_its_files_are_gone(families: Any, tmp_path: Path):
    """It reads them again when it is saved, and they are removed with it."""
    whole, files = opened("m2m100", families("m2m100")), text_files(tmp_path)
    cut, _ = cut_pair(whole, *files)
    folder = Path(cut.tokenizer.spm_file).parent
    assert folder.exists()
    cut.tokenizer.save_pretrained(tmp_path / "saved")
    del cut
    assert not folder.exists()
    (tmp_path / "saved" / "config.json").write_text('{"model_type": "m2m_100"}', encoding="utf-8")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved", src_lang="en")
    old, new = (x(SOURCE_TEXTS)["input_ids"] for x in (whole.tokenizer, again))
    assert [*map(again.convert_ids_to_tokens, new)] == [
        *map(whole.tokenizer.convert_ids_to_tokens, old)
    ]


def test_tokens_of_a_tokenizer_with_its_own_pipeline_are_cut(families: Any, tmp_path: Path):
    """Of a file that transformers would not follow."""
    directory = tmp_path / "nllb"
    shutil.copytree(families("nllb"), directory)
    path = directory / "tokenizer.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    state["normalizer"] = {"type": "Lowercase"}
    path.write_text(json.dumps(state), encoding="utf-8")
    configure("tokenizer_config.json", added="nothing")(directory)
    with pytest.warns(UserWarning, match="follows tokenizer.json"):
        whole = opened("nllb", directory)
    cut, _ = cut_pair(whole, *text_files(tmp_path))
    assert cut.notes == whole.notes != []
    save_checkpoint(cut, cut.model, None, tmp_path / "out")
    again = open_checkpoint(str(tmp_path / "out"))
    text = SOURCE_TEXTS[0].upper()
    expected = whole.tokenizer.convert_ids_to_tokens(whole.tokenizer(text)["input_ids"])
    assert again.tokenizer.convert_ids_to_tokens(again.tokenizer(text)["input_ids"]) == expected


def test_a_pruned_model_is_cut_too(families: Any, tmp_path: Path):
    """With its record, and the same states for the same tokens."""
    dense = opened("marian", families("marian"))
    mask = uneven_mask(dense.layers)
    small = prune(dense.model, dense.layers, mask)
    save_checkpoint(dense, small, facts(dense.layers, mask), tmp_path / "pruned")
    section = ModelSection(path=str(tmp_path / "pruned"), prefix="")
    whole = load(section, dense=False)
    cut, kept = cut_pair(whole, *text_files(tmp_path))
    assert whole.pruning is not None
    save_checkpoint(cut, cut.model, whole.pruning.contents, tmp_path / "out")
    again = open_checkpoint(str(tmp_path / "out"))
    assert again.mask == whole.mask
    texts = SOURCE_TEXTS[:6]
    with torch.no_grad():
        logits = []
        for checkpoint in (whole, again):
            batch = checkpoint.tokenizer(texts, padding=True, return_tensors="pt")
            start = torch.full((len(texts), 1), checkpoint.tokenizer.pad_token_id)
            logits.append(checkpoint.model(**batch, decoder_input_ids=start).logits)
    torch.testing.assert_close(logits[1], logits[0][..., kept.targets], rtol=0, atol=1e-5)
