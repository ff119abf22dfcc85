"""How a model generates: `generation_config.json`, checked when it is opened, and generation by it.

`SUPPORTED`, `HARMLESS` and `NEUTRAL` together have every attribute of transformers'
`GenerationConfig`, from version 5.17 on.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import transformers
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, ValidationInfo
from torch import Tensor, nn

from compressor.errors import CompressWarning, UsageError, did_you_mean
from compressor.model.architecture import decoder_tokens
from compressor.model.location import CONFIG_FILE
from compressor.model.modes import hooks, quiet_transformers
from compressor.model.reading import malformed, read_object, require_supported, unsupported
from compressor.options.bounds import MOST_BEAMS

GENERATION_FILE = "generation_config.json"
_MALFORMED = "generation-config-malformed"
_TIE = "they tie in the last place, so that a search with several beams has no certain result"
MOST_LENGTH = 1_000_000


def _in_vocabulary(token: int, info: ValidationInfo) -> int:
    if token >= info.context["rows"]:  # type: ignore[index]
        raise ValueError(f"not a token below {info.context['rows']:,}")  # type: ignore[index]
    return token


_TOKEN = Annotated[int, Field(ge=0), AfterValidator(_in_vocabulary)]
_LENGTH = Annotated[int, Field(ge=0, le=MOST_LENGTH)]
# Setting -> type of its values, beside null. The search of the runtime follows these, too.
SUPPORTED: Mapping[str, Any] = {
    **dict.fromkeys(
        ("decoder_start_token_id", "pad_token_id", "bos_token_id", "forced_bos_token_id"), _TOKEN
    ),
    **dict.fromkeys(
        ("eos_token_id", "forced_eos_token_id"),
        _TOKEN | Annotated[list[_TOKEN], Field(min_length=1)],
    ),
    "suppress_tokens": list[_TOKEN],
    # Words of several tokens are not banned by the runtime.
    "bad_words_ids": Annotated[
        list[Annotated[list[_TOKEN], Field(min_length=1, max_length=1)]], Field(min_length=1)
    ],
    "num_beams": Annotated[int, Field(ge=1, le=MOST_BEAMS)],
    "max_length": Annotated[_LENGTH, Field(ge=2)],  # the start token and another one
    "max_new_tokens": Annotated[_LENGTH, Field(ge=1)],
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size"), _LENGTH),
    "length_penalty": Annotated[float, Field(allow_inf_nan=False)],
    "early_stopping": bool | Literal["never"],
    "renormalize_logits": bool,
}
# What `generate` returns beside the tokens.
_RETURNED = {
    *("return_dict_in_generate", "output_scores", "output_logits"),
    *("output_attentions", "output_hidden_states"),
}
# These change none of the tokens that transformers generates.
HARMLESS = _RETURNED | {
    # They count where tokens are sampled (do_sample).
    *("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p"),
    *("epsilon_cutoff", "eta_cutoff"),
    # They count where another model drafts; the last one with prompt_lookup_num_tokens.
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "speculation_type"),
    *("assistant_confidence_threshold", "assistant_ensemble_weight", "assistant_lookbehind"),
    *("target_lookbehind", "max_matching_ngram_size"),
    # How fast the tokens come, and in how much memory.
    *("use_cache", "disable_compile", "max_cache_len", "cache_config"),
    "continuous_batching_config",
    "remove_invalid_values",  # counts where logits are not finite, and weights are
    *("transformers_version", "_from_model_config", "_commit_hash"),
}
# What is not supported, with the values that change nothing.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("exponential_decay_length_penalty", "sequence_bias", "stop_strings"), ()),
    **dict.fromkeys(("watermarking_config", "max_time", "constraints", "force_words_ids"), ()),
    **dict.fromkeys(("dola_layers", "prompt_lookup_num_tokens", "assistant_early_exit"), ()),
    "prefill_chunk_size": (),  # transformers 5.23 answers otherwise where a batch has padding
    "compile_config": (),  # transformers itself reads none from a file
    **dict.fromkeys(
        ("do_sample", "token_healing", "is_assistant", "use_mtp", "low_memory"), (False,)
    ),
    **dict.fromkeys(("num_beam_groups", "num_return_sequences"), (1,)),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale"), (1.0,)),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), (0.0,)),
    "encoder_no_repeat_ngram_size": (0,),
    "begin_suppress_tokens": ([],),
    "cache_implementation": ("dynamic", "static", "hybrid"),  # others are for some models alone
}
# Whatever a model's settings say: the tokens alone, with the usual cache.
_TOKENS_ALONE: dict[str, Any] = {
    **dict.fromkeys(_RETURNED, False),
    "use_cache": True,
    "cache_implementation": None,
}


@dataclass(frozen=True)
class GenerationSettings:
    """How a checkpoint's files say that its model generates; all of it is followed.

    Args:
        path: `generation_config.json`, or `config.json` where there is none.
        values: those in the file.
    """

    path: Path
    values: Mapping[str, Any]

    @property
    def has_own_file(self) -> bool:
        """Whether the file is there for them alone."""
        return self.path.name == GENERATION_FILE


def read_generation(directory: Path, config: Any) -> GenerationSettings | None:
    """Read the settings of generation; None of an encoder.

    Warns of names that transformers does not know.

    Args:
        directory: of the checkpoint.
        config: of the model.

    Raises:
        InputError: the file cannot be read, or has settings that are not followed.
    """
    if not config.is_encoder_decoder:
        return None
    path = directory / GENERATION_FILE
    path = path if path.exists() else directory / CONFIG_FILE
    values, unknown = read_object(path, _MALFORMED), []
    settings, rows = GenerationSettings(path, values), decoder_tokens(config)
    for name, value in values.items():
        if value is None or name in HARMLESS:
            continue
        if name in SUPPORTED:
            require_supported(path, name, value, SUPPORTED[name], rows=rows)
        elif name in NEUTRAL:
            if value not in NEUTRAL[name]:
                others = " or ".join(map(repr, (*NEUTRAL[name], None)))
                raise unsupported(path, name, value, f"supported is {others}")
        elif settings.has_own_file and hasattr(transformers.GenerationConfig(), name):
            raise unsupported(path, name, value, "it is of a later transformers")
        else:
            unknown.append(name)
    forced = values.get("forced_eos_token_id")
    if (values.get("num_beams") or 1) > 1 and _tie(forced, values.get("suppress_tokens")):
        raise unsupported(path, "forced_eos_token_id", forced, _TIE)
    if not settings.has_own_file:
        return settings
    if unknown:
        near = next(filter(None, (did_you_mean(x, SUPPORTED) for x in unknown)), "")
        warnings.warn(
            f"{path} sets {', '.join(unknown)[:200]}, which transformers does not know and ignores"
            f"{near}",
            CompressWarning,
            stacklevel=2,
        )
    try:
        with quiet_transformers():
            transformers.GenerationConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # whatever the library trips over is in the files
        raise malformed(path, error, _MALFORMED) from error
    return settings


def _tie(forced: list[int] | int | None, suppressed: list[int] | None) -> bool:
    # As `Generation.ends_tie` of the runtime, which this room does not import.
    return isinstance(forced, list) and len({*forced} - {*(suppressed or ())}) > 1


def require_beams(settings: Any, flag: str, beams: int | None) -> None:
    """Raise `UsageError` for several beams where a model's settings give them no certain result.

    Args:
        settings: the model's generation configuration.
        flag: the option, for the message.
        beams: its value; None: not set.
    """
    forced, suppressed = settings.forced_eos_token_id, settings.suppress_tokens
    if (beams or 1) > 1 and _tie(forced, suppressed):
        raise UsageError(
            f"{flag} {beams}: the model's forced_eos_token_id has several tokens, and {_TIE}; "
            f"leave {flag} out",
            id="forced-ends-tie",
        )


def follow_generation(model: Any, stored: GenerationSettings) -> None:
    """Have a loaded model generate as its files say, in place, where transformers would not.

    Without a file of its own, transformers 4 takes all generation settings from the configuration,
    also the tokens that its class has by default; 5 takes those that `config.json` lists. And the
    token that a model starts with is set as `generate` does.

    Raises:
        InputError: there is no token to start with.
    """
    settings = model.generation_config
    if not stored.has_own_file:
        for name in SUPPORTED:
            if name.endswith("_token_id") and name not in stored.values:
                setattr(settings, name, getattr(model.config, name, None))
    if settings.decoder_start_token_id is None:
        if settings.bos_token_id is None:
            reason = "it has neither decoder_start_token_id nor bos_token_id"
            raise malformed(stored.path, reason, _MALFORMED)
        settings.decoder_start_token_id = settings.bos_token_id


def generate(model: Any, inputs: Mapping[str, Any], **options: Any) -> Any:
    """Generate by `generate` of transformers, never sampled.

    Args:
        model: an encoder-decoder.
        inputs: `input_ids` and `attention_mask`, [rows, source].
        options: of `generate`.

    Returns:
        Token ids [rows, tokens], the start token first.
    """
    with quiet_transformers():
        return model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=False,
            **_TOKENS_ALONE,
            **options,
        )


def generation_settings(model: nn.Module) -> dict[str, Any]:
    """The settings of the generation configuration that the runtime needs, with defaults."""
    settings: Any = model.generation_config
    end = settings.eos_token_id
    ends = [] if end is None else [end] if isinstance(end, int) else list(end)
    # As in `generate`, an end token is never banned as a word.
    banned = sorted({word[0] for word in settings.bad_words_ids or []} - set(ends))
    # Numbers of tokens include the start token, as in `generate`.
    min_length = settings.min_length or 0
    if settings.min_new_tokens is not None:
        min_length = int(settings.min_new_tokens) + 1
    max_length = settings.max_length
    if max_length is None and settings.max_new_tokens is None:
        max_length = 21  # generate's default: the start token and 20 more
    return {
        "decoder_start_token_id": settings.decoder_start_token_id,
        "eos_token_id": ends,
        "max_length": max_length,
        "max_new_tokens": settings.max_new_tokens,
        "min_length": min_length,
        "num_beams": settings.num_beams or 1,
        "length_penalty": 1.0 if settings.length_penalty is None else settings.length_penalty,
        "early_stopping": settings.early_stopping or False,
        "forced_bos_token_id": settings.forced_bos_token_id,
        "forced_eos_token_id": settings.forced_eos_token_id,  # one, or several that tie
        "bad_words_ids": [[token] for token in banned],
        "suppress_tokens": sorted(set(settings.suppress_tokens or [])),
        "no_repeat_ngram_size": settings.no_repeat_ngram_size or 0,
        "renormalize_logits": bool(settings.renormalize_logits),
    }


@contextmanager
def restricted(model: Any, tokens: Sequence[int]) -> Iterator[None]:
    """Within the context, the PyTorch model gives all other tokens a probability of 0."""
    projection = model.get_output_embeddings()
    left_out = torch.ones(projection.out_features, dtype=torch.bool)
    left_out[list(tokens)] = False  # [vocabulary]
    hook = projection.register_forward_hook(lambda *x: x[2].masked_fill(left_out, -torch.inf))
    with hooks([hook]):
        yield


def greedy(
    model: Any, batch: Mapping[str, Tensor], tokens: Sequence[int], most: int
) -> tuple[dict[str, NDArray[Any]], NDArray[Any], Iterator[NDArray[Any]]]:
    """Decode greedily with PyTorch, with some tokens alone.

    Args:
        model: an encoder-decoder.
        batch: `input_ids` and `attention_mask`, [rows, source].
        tokens: ids that may be generated.
        most: how many to generate at most.

    Returns:
        The inputs as arrays; the outputs [rows, steps + 1], from the start token on; and for each
        row the logits of all tokens along them, [steps, vocabulary].
    """
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with restricted(model, tokens):
        outputs = generate(model, inputs, num_beams=1, max_new_tokens=most)
    forced = {**inputs, "decoder_input_ids": outputs[:, :-1]}
    # Row by row, since logits of all tokens take as much memory as a small model.
    rows = ({n: x[row : row + 1] for n, x in forced.items()} for row in range(len(outputs)))
    arrays = {name: value.numpy() for name, value in inputs.items()}
    return arrays, outputs.numpy(), (model(**row).logits[0].numpy() for row in rows)


def searched(
    model: Any,
    batch: Mapping[str, Tensor],
    ends: Collection[int],
    padding: int,
    tokens: Sequence[int] | None = None,
    **options: Any,
) -> list[list[int]]:
    """Generate with PyTorch, with some tokens alone.

    Args:
        model: an encoder-decoder.
        batch: `input_ids` and `attention_mask`, [rows, source].
        ends: ids of the tokens that end an answer.
        padding: id of the token that stands behind it.
        tokens: ids that may be generated; None for all.
        options: of `generate`.

    Returns:
        `up_to_end` of each row.
    """
    with nullcontext() if tokens is None else restricted(model, tokens):
        rows: list[list[int]] = generate(model, batch, **options).tolist()
    return [up_to_end(row[1:], ends, padding) for row in rows]


def up_to_end(row: list[int], ends: Collection[int], padding: int) -> list[int]:
    """The tokens up to the first end, and before padding, which a search puts behind an answer."""
    for i, token in enumerate(row):
        if token in ends or token == padding:
            return row[: i + (token in ends)]
    return row


@contextmanager
def perturbed(model: Any, share: float, seed: int) -> Iterator[None]:
    """Change, within the context, the PyTorch model's logits a little, at random.

    Args:
        model: an encoder-decoder.
        share: of the largest logit, by which they are off at most.
        seed: of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)

    def change(module: nn.Module, inputs: object, logits: Tensor) -> Tensor:
        noise = 2 * torch.rand(logits.shape, generator=generator) - 1
        largest = logits.where(logits.isfinite(), 0).abs().max()
        return logits + share * largest * noise.to(logits)

    with hooks([model.get_output_embeddings().register_forward_hook(change)]):
        yield


def save_generation(settings: Any, directory: Path) -> None:
    """Write generation settings, also those that `save_pretrained` of transformers refuses.

    It refuses settings without effect.
    """
    settings.to_json_file(directory / GENERATION_FILE, keys_to_pop=["compile_config"])
