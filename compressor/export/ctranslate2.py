"""Export of translators, also unevenly pruned ones, to directories for `ctranslate2.Translator`.

CTranslate2's converter for Marian assumes that decoding starts from a zero embedding, and drops the
last token. Models trained in transformers have a start token whose embedding is not zero. So the
vocabulary stays complete, the start token is set, and a bias prevents generating it and all other
tokens that are never generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from compressor.errors import VerificationError
from compressor.export.ctranslate2_layers import specification
from compressor.export.generation import generation_settings, length_option
from compressor.export.task_graphs import Inputs, Network
from compressor.export.verify import require_tie, translation_check
from compressor.export.vocabulary import bias_of, restricted
from compressor.model.generation import generate, save_generation
from compressor.model.languages import languages
from compressor.model.tokenizer import save_tokenizer, target_ids, target_side
from compressor.results import Check
from compressor.runtime.artifact import Generation
from compressor.runtime.engines import TokenGenerator
from compressor.runtime.engines.ctranslate2 import OpenedTranslator

STORED = {"fp32": "float32", "fp16": "float16", "int8": "int8"}  # precision -> CTranslate2's name
NEVER = -1e9  # bias of tokens that are never generated


@torch.no_grad()
def write_translator(network: Network, directory: Path, precision: str) -> None:
    """Write the model, its vocabulary, and the files of its tokenizer.

    Args:
        precision: that weights are stored in; `ctranslate2.Translator` computes in it by default.
    """
    model: Any = network.model
    spec = specification(network)
    scored = _scored(network)
    usual = bias_of(model).detach().clamp(min=NEVER)  # -inf bans a token
    bias = torch.full_like(usual, NEVER)  # [tokens]
    bias[scored] = usual[scored]
    bias[generation_settings(model)["suppress_tokens"]] = NEVER
    spec.decoder.projection.bias = bias
    _name_tokens(spec, model, network.checkpoint.tokenizer)
    # In the order of CTranslate2's own converters; `validate` raises for missing weights.
    spec.validate()
    spec.optimize(quantization=STORED[precision])
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))
    # The caller chooses search settings; those of the model are stored for reference.
    save_generation(model.generation_config, directory)
    save_tokenizer(network.checkpoint.tokenizer, directory)


def _scored(network: Network) -> list[int]:
    """Ids of the tokens that a translation may consist of."""
    size: int = network.model.get_output_embeddings().out_features  # type: ignore[operator]
    return [*range(size)] if network.tokens is None else network.tokens


def _name_tokens(spec: Any, model: Any, tokenizer: Any) -> None:
    """Name the special tokens, and all tokens in the order of their ids."""
    settings = generation_settings(model)
    for name in ("bos_token", "eos_token", "unk_token"):
        if getattr(tokenizer, name) is not None:
            setattr(spec.config, name, getattr(tokenizer, name))
    # The vocabulary of M2M100's tokenizer lacks its languages.
    further = {i: tokenizer.convert_ids_to_tokens(i) for i in languages(tokenizer).values()}

    def names(ids: Mapping[str, int], rows: int) -> list[str]:
        """The token of each row, with made-up names for rows without a token."""
        known = {number: token for token, number in ids.items()} | further
        return [known.get(number, f"<unused {number}>") for number in range(rows)]

    sources = len(model.get_encoder().embed_tokens.weight)
    target = names(target_ids(tokenizer), model.get_output_embeddings().out_features)
    if settings["eos_token_id"]:  # the model's, which may differ from the tokenizer's
        spec.config.eos_token = target[settings["eos_token_id"][0]]
    spec.config.decoder_start_token = target[settings["decoder_start_token_id"]]
    spec.register_source_vocabulary(names(tokenizer.get_vocab(), sources))
    spec.register_target_vocabulary(target)


@torch.no_grad()
def verify_translator(network: Network, directory: Path, batches: Sequence[Inputs]) -> list[Check]:
    """Compare greedy translations with PyTorch's, token for token, in float32.

    CTranslate2 uses names of tokens, which are compared with the tokenizer's.

    Raises:
        VerificationError: a token differs, and PyTorch's own best two logits are no tie; or a name
            of a token differs.
    """
    translator = OpenedTranslator(directory, threads=1)
    tokenizer: Any = network.checkpoint.tokenizer

    def require(names: Sequence[str], ids: Mapping[str, int]) -> None:
        # Ids from the tokenizer itself, on its current side. Special and added tokens have the same
        # id on both sides.
        tokens = [token for token in ids if token not in tokenizer.added_tokens_encoder]
        for token, number in zip(tokens, tokenizer.convert_tokens_to_ids(tokens), strict=True):
            if number >= len(names) or names[number] != token:
                raise VerificationError(
                    f"token {number} in {directory} is not {token!a:.40}, as in the "
                    f"{type(tokenizer).__name__}; please report this",
                    id="ctranslate2-vocabulary-differs",
                )

    require(translator.sources, tokenizer.get_vocab())
    with target_side(tokenizer):
        require(translator.targets, target_ids(tokenizer))
    return verify_search(network, translator, batches, "CTranslate2")


@torch.no_grad()
def verify_search(
    network: Network, translator: TokenGenerator, batches: Sequence[Inputs], name: str
) -> list[Check]:
    """`verify_translator` for any engine with its own search, whose `name` checks show."""
    model: Any = network.model
    positions = network.checkpoint.entry.most_positions(model.config)
    settings = Generation(**generation_settings(model), positions=positions).with_options(1, None)
    longest = length_option(settings, settings.limit)
    rows, count, ties = 0, 0, 0
    # The written model's bias excludes the other tokens.
    with restricted(model, _scored(network)):
        for batch in batches:
            inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
            tokens = generate(model, inputs, num_beams=1, **longest)
            # [rows, steps, vocabulary]
            logits = model(**inputs, decoder_input_ids=tokens[:, :-1]).logits
            arrays = {key: value.numpy() for key, value in inputs.items()}
            generated = translator.generate(arrays, settings)
            for padded, got, row in zip(tokens[:, 1:].tolist(), generated, logits, strict=True):
                ends = (i for i, token in enumerate(padded, 1) if token in settings.eos_token_id)
                want = padded[: next(ends, None)]
                rows, count = rows + 1, count + len(want)
                if want != got:
                    require_tie(want, got, row, name)
                    ties += 1
    return [translation_check(count, rows, ties, ", in float32", name)]
