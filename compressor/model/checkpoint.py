"""Loading and saving checkpoints: dense or pruned, from a local directory or a hub id.

A pruned checkpoint is an ordinary one plus `heads.json`, which says which heads are left.
transformers 5 cannot load it (head counts differ from layer to layer); `load` can, strictly:
every weight comes from the file and every weight of the file is used.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from transformers.utils import logging as hub_logging

from compressor.errors import InputError
from compressor.model.architectures import CLASSIFIER, Architecture, architecture, find_sublayers
from compressor.model.sublayers import HEADS, Mask, Sublayer, read_heads
from compressor.model.surgery import remove_heads

WEIGHTS = "model.safetensors"
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.spm", "*.safetensors"]
_PICKLES = "pytorch_model*.bin"


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model with all that later stages need to know about it.

    `layers` describe the dense model, also when `mask` says that heads are already gone.
    """

    model: nn.Module
    tokenizer: Any
    layers: list[Sublayer]
    mask: Mask
    directory: Path
    name: str
    revision: str | None
    dtype: torch.dtype  # how the weights are stored; computation is in float32
    heads: dict[str, Any] = field(default_factory=dict)  # the contents of heads.json, if pruned

    @property
    def entry(self) -> Architecture:
        return architecture(self.model.config.model_type)  # type: ignore[union-attr,arg-type]


def resolve(model: str, revision: str | None = None, allow_pickle: bool = False) -> Path:
    """The directory of a checkpoint, downloading it when `model` is a hub id.

    The revision is resolved once; all files come from that commit.

    Raises:
        InputError: neither a directory nor a hub id that can be fetched.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if revision is not None:
            raise InputError(f"--revision {revision} makes no sense for the directory {model}")
        return path
    if path.exists():
        raise InputError(f"{model} is a file; give the checkpoint's directory")
    if model.count("/") > 1 or model.startswith((".", "/", "~")):
        raise InputError(f"there is no directory {model}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    files = [*_HUB_FILES, _PICKLES] if allow_pickle else _HUB_FILES
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=files))
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"there is no directory {model}, and the hub cannot be reached to look for a model of "
            "that name; check the path or the connection"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise InputError(
            f"the hub has no model {model!r} (revision {revision or 'main'})"
        ) from error


def checkpoint_files(directory: Path) -> list[Path]:
    """The files that say what a checkpoint computes; notes and plots beside them do not."""
    patterns = [*_HUB_FILES, _PICKLES, "*.py"]
    found = {path for pattern in patterns for path in directory.glob(pattern)}
    return sorted(path for path in found if path.is_file())


def open_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> Checkpoint:
    """Load model and tokenizer in float32 on the CPU, in evaluation mode.

    Raises:
        InputError: nothing there, unsupported architecture, unsafe or incomplete weights.
    """
    directory = resolve(model, revision, allow_pickle)
    config = _config(directory, trust_remote_code)
    entry = architecture(config.model_type, model)
    if entry.auto_class == CLASSIFIER:
        _require_one_of_several_classes(directory, config)
    _require_weights(directory, allow_pickle)
    if (directory / HEADS).exists():
        network, layers, mask, heads = _load_pruned(directory, config, entry)
    else:
        network, layers = _load_dense(directory, config, entry, allow_pickle)
        mask, heads = Mask.full(layers), {}
    commit = directory.name if directory.parent.name == "snapshots" else revision
    return Checkpoint(
        model=network.eval(),
        tokenizer=_tokenizer(directory, trust_remote_code),
        layers=layers,
        mask=mask,
        directory=directory,
        name=model,
        revision=commit,
        dtype=_stored_dtype(directory),
        heads=heads,
    )


def load(directory: str | Path) -> nn.Module:
    """The PyTorch model of a compressed (or dense) checkpoint directory, in evaluation mode.

    Strict: raises `InputError` if any weight is missing or of the wrong shape, or if one is left
    over (of a dense model: in its attention; a pooler that the task has no use for is ignored).
    """
    return open_checkpoint(str(directory)).model


def _config(directory: Path, trust_remote_code: bool) -> Any:
    path = directory / "config.json"
    if not path.exists():
        raise InputError(f"{directory} has no config.json; give a checkpoint's directory")
    try:
        model_type = json.loads(path.read_text(encoding="utf-8")).get("model_type", "unknown")
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path} is not a model configuration: {error}") from error
    architecture(model_type, str(directory))
    config = transformers.AutoConfig.from_pretrained(
        directory, local_files_only=True, trust_remote_code=trust_remote_code
    )
    positions = getattr(config, "position_embedding_type", None)
    if positions not in (None, "absolute"):
        raise InputError(
            f"{directory} has {positions} positions, with weights in its attention that the "
            "transformers library no longer knows; give a checkpoint with absolute positions"
        )
    # Forms of calling that change no result; scoring and repair look into the usual one.
    config.return_dict = True
    config.chunk_size_feed_forward = 0
    return config


def _require_one_of_several_classes(directory: Path, config: Any) -> None:
    several = "multi_label_classification"
    if config.num_labels < 2 or config.problem_type in (several, "regression"):
        kind = "several labels" if config.problem_type == several else "a number"
        raise InputError(
            f"{directory} answers with {kind} per text (problem_type {config.problem_type}, "
            f"{config.num_labels} labels), and only classifiers with one of several labels are "
            "supported; give one of those"
        )


def _require_weights(directory: Path, allow_pickle: bool) -> None:
    if list(directory.glob("*.safetensors")):
        return
    if list(directory.glob(_PICKLES)):
        if allow_pickle:
            return
        raise InputError(
            f"{directory} has its weights only as a pickle (pytorch_model.bin), which can run code "
            "when loaded; convert it to safetensors, or pass --allow-pickle if you trust it"
        )
    raise InputError(f"{directory} has no weights (*.safetensors)")


def _load_dense(
    directory: Path, config: Any, entry: Architecture, allow_pickle: bool
) -> tuple[nn.Module, list[Sublayer]]:
    auto = getattr(transformers, entry.auto_class)
    safe = not allow_pickle or bool(list(directory.glob("*.safetensors")))
    with _quiet():
        try:
            model, info = auto.from_pretrained(
                directory,
                config=config,
                dtype=torch.float32,
                use_safetensors=safe,
                local_files_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"cannot load {directory} as a {config.model_type}: {reason}"
            ) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise InputError(
            f"{directory} lacks {len(missing)} of the weights that {type(model).__name__} needs "
            f"(first: {missing[0]}); fine-tune it for {entry.task} first"
        )
    layers = find_sublayers(model)
    blocks = tuple(f"{layer.block}." for layer in layers)
    unknown = sorted(name for name in info["unexpected_keys"] if name.startswith(blocks))
    if unknown:
        raise InputError(
            f"{directory} has {len(unknown)} weights in its attention that {type(model).__name__} "
            f"knows nothing of (first: {unknown[0]}), so it would be another model without them"
        )
    return model, layers


def _load_pruned(
    directory: Path, config: Any, entry: Architecture
) -> tuple[nn.Module, list[Sublayer], Mask, dict[str, Any]]:
    heads = read_heads(directory)
    with _quiet():
        model = getattr(transformers, entry.auto_class).from_config(config, dtype=torch.float32)
    layers = find_sublayers(model)
    mask = Mask.from_json(heads["kept"], heads["heads"])
    if {layer.name: layer.units for layer in layers} != heads["heads"]:
        raise InputError(
            f"{directory / HEADS} and config.json disagree about the dense head counts"
        )
    if (directory / "generation_config.json").exists():
        model.generation_config = transformers.GenerationConfig.from_pretrained(directory)
    remove_heads(model, layers, mask)
    _load_strictly(model, directory / WEIGHTS)
    return model, layers, mask, heads


def _load_strictly(model: nn.Module, path: Path) -> None:
    """Load all weights of one file; tied weights may be stored under any of their names."""
    if not path.exists():
        raise InputError(
            f"a compressed checkpoint keeps its weights in one file; {path} is missing"
        )
    expected = model.state_dict()
    aliases: dict[int, set[str]] = {}
    for name, value in expected.items():
        aliases.setdefault(value.data_ptr(), set()).add(name)
    with safe_open(path, framework="pt") as file:
        stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        covered = {alias for group in aliases.values() if group & set(stored) for alias in group}
        known = set(stored) & set(expected)
        for problem, names in (
            ("lacks", set(expected) - covered - _computed(model)),
            ("has unexpected", set(stored) - set(expected)),
            ("misfits", {name for name in known if stored[name] != expected[name].shape}),
        ):
            if names:
                raise InputError(f"{path} {problem} {len(names)} weights, first {sorted(names)[0]}")
    for name in stored:  # opened for one at a time: what was read does not stay mapped
        with safe_open(path, framework="pt") as file:
            expected[name].copy_(file.get_tensor(name))
    model.tie_weights()  # type: ignore[operator]


def _stored_dtype(directory: Path) -> torch.dtype:
    names = {"F16": torch.float16, "BF16": torch.bfloat16}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                return names.get(file.get_slice(key).get_dtype(), torch.float32)
    for path in sorted(directory.glob(_PICKLES)):  # allowed, or it had not been loaded
        weights = torch.load(path, map_location="meta", weights_only=True)
        for weight in weights.values():
            if weight.is_floating_point():
                return weight.dtype if weight.dtype in names.values() else torch.float32
    return torch.float32


def _tokenizer(directory: Path, trust_remote_code: bool) -> Any:
    with _quiet():
        try:
            return transformers.AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"cannot load the tokenizer of {directory}: {reason}") from error


class _quiet(warnings.catch_warnings):
    """Silence the loading chatter of transformers; what matters is checked and raised here."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        self.verbosity = hub_logging.get_verbosity()
        hub_logging.set_verbosity_error()
        hub_logging.disable_progress_bar()

    def __exit__(self, *error: Any) -> None:
        hub_logging.set_verbosity(self.verbosity)
        super().__exit__(*error)


def round_to(model: nn.Module, dtype: torch.dtype) -> None:
    """Round all weights to `dtype`, in place, so that what is saved is what was measured."""
    if dtype == torch.float32:
        return
    computed = _computed(model)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and name not in computed:
            tensor.copy_(tensor.to(dtype))


def save_checkpoint(
    source: Checkpoint, model: nn.Module, heads: dict[str, Any], directory: Path
) -> list[Path]:
    """Write a pruned model in the source's format and precision, with `heads.json` beside it.

    The weights must already be representable in the stored dtype (see `round_to`).

    Returns:
        The files written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    computed = _computed(model)
    state, seen = {}, set()
    for name, value in model.state_dict().items():
        if name not in computed and value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            stored = value.to(source.dtype) if value.is_floating_point() else value
            state[name] = stored.contiguous()
    save_file(state, directory / WEIGHTS, metadata={"format": "pt"})
    save_settings(source, model, directory)
    text = json.dumps(heads, indent=1, ensure_ascii=False)
    (directory / HEADS).write_text(text + "\n", encoding="utf-8")
    return [p for p in directory.iterdir() if p.is_file() and before.get(p) != p.stat().st_mtime_ns]


def save_settings(source: Checkpoint, model: nn.Module, directory: Path) -> None:
    """Write all of a checkpoint but its weights: configurations and tokenizer."""
    model.config.save_pretrained(directory)  # type: ignore[union-attr,operator]
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        generation.save_pretrained(directory)
    with _quiet():
        source.tokenizer.save_pretrained(directory)
    _copy_missing(source.directory, directory, ("source.spm", "target.spm", "vocab.json"))


def _copy_missing(source: Path, target: Path, names: Iterable[str]) -> None:
    for name in names:
        if (source / name).exists() and not (target / name).exists():
            shutil.copyfile(source / name, target / name)


def count_parameters(model: nn.Module) -> int:
    """Number of weights, tied ones once, positions that are computed not at all."""
    computed = _computed(model)
    return sum(p.numel() for name, p in model.named_parameters() if name not in computed)


def _computed(model: nn.Module) -> set[str]:
    """Names of weights that are computed, not stored: sinusoidal positions."""
    return set(getattr(model, "_keys_to_ignore_on_save", None) or ())
