"""Models for timing: realistic sizes and random weights; their answers mean nothing.

A model that its directory holds already is not made again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from compressor import example

OPUS_PIECES = 58_101  # vocabulary of the OPUS-MT models: the union of two languages' pieces
SPM_PIECES = 32_000  # assumed number of pieces of each language


def translator(directory: Path, *, layers: int = 6, width: int = 512) -> Path:
    """A Marian checkpoint, by default of OPUS-MT's size (74 million parameters).

    Its tokenizer is the bundled translator's, with placeholder names for the additional pieces.
    Each language's SentencePiece model has 32,000 pieces; some are in both.
    """
    from transformers import MarianConfig, MarianMTModel

    if _is_complete(directory):
        return directory
    pad = OPUS_PIECES - 1
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=OPUS_PIECES, decoder_vocab_size=OPUS_PIECES, d_model=width,
        encoder_layers=layers, encoder_attention_heads=width // 64, encoder_ffn_dim=4 * width,
        decoder_layers=layers, decoder_attention_heads=width // 64, decoder_ffn_dim=4 * width,
        activation_function="swish", scale_embedding=True, max_position_embeddings=512,
        pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, bos_token_id=0,
        forced_eos_token_id=None, share_encoder_decoder_embeddings=True,
    )  # fmt: skip
    model = MarianMTModel(config)
    model.generation_config.bad_words_ids = [[pad]]
    model.save_pretrained(directory)
    source = Path(example.model())
    pieces = json.loads((source / "vocab.json").read_text(encoding="utf-8"))
    old_pad = pieces.pop("<pad>")
    names = [f"unused{i}" for i in range(old_pad, pad)]
    more = SPM_PIECES - old_pad
    _add_pieces(source / "source.spm", names[:more], directory / "source.spm")
    _add_pieces(source / "target.spm", names[-more:], directory / "target.spm")
    pieces |= {name: old_pad + i for i, name in enumerate(names)} | {"<pad>": pad}
    _write(directory / "vocab.json", pieces)
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["added_tokens_decoder"][str(pad)] = settings["added_tokens_decoder"].pop(str(old_pad))
    _write(directory / "tokenizer_config.json", settings | {"model_max_length": 512})
    return directory


def _is_complete(directory: Path) -> bool:
    return (directory / "tokenizer_config.json").exists()  # written last


def _add_pieces(source: Path, names: list[str], target: Path) -> None:
    """Copy a SentencePiece model and add pieces, with scores so low that none is ever used."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    model.ParseFromString(source.read_bytes())
    for name in names:
        model.pieces.add(piece=name, score=-100.0)
    target.write_bytes(model.SerializeToString())


def encoder(directory: Path, *, layers: int = 12, width: int = 768, pieces: int = 30_522) -> Path:
    """A BERT classifier with two labels, by default of BERT-base's size (110 million parameters).

    Its tokenizer splits words into letters; timing cuts or pads rows to a number of tokens.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    if _is_complete(directory):
        return directory
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=pieces, hidden_size=width, num_hidden_layers=layers,
        num_attention_heads=width // 64, intermediate_size=4 * width,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(directory)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(i) for i in range(33, 127)]
    names = [*special, *letters, *(f"##{letter}" for letter in letters)]
    names += [f"unused{i}" for i in range(len(names), pieces)]
    vocabulary = {name: i for i, name in enumerate(names)}
    core = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=False)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_max_length=512,
    ).save_pretrained(directory)  # fmt: skip
    return directory


def labelled_sentences(path: Path) -> Path:
    """The bundled test sentences with made-up labels, for the random classifiers."""
    lines = Path(example.test()).read_text(encoding="utf-8").splitlines()[1:]
    rows = [f"{line.split(chr(9))[0]}\tLABEL_{number % 2}" for number, line in enumerate(lines)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    return path


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
