"""Which weights of a model are stored and counted, and loading them strictly from a file."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import nn

from compressor.errors import InputError


def computed_weights(model: nn.Module) -> set[str]:
    """Names of weights that are computed, not stored: sinusoidal positions."""
    return set(getattr(model, "_keys_to_ignore_on_save", None) or ())


def count_parameters(model: nn.Module) -> int:
    """Number of stored weights; tied ones count once."""
    computed = computed_weights(model)
    return sum(p.numel() for name, p in model.named_parameters() if name not in computed)


def load_strictly(model: nn.Module, path: Path) -> None:
    """Load all weights from one file, in place; tied ones may be stored under any of their names.

    Raises:
        InputError: the file is missing, lacks weights, has others, or has them in other shapes.
    """
    if not path.exists():
        raise InputError(
            f"a compressed checkpoint keeps its weights in one file; {path} is missing",
            id="weights-missing",
        )
    expected = model.state_dict()
    aliases: dict[int, set[str]] = {}  # address of the memory -> names of the weights tied to it
    for name, value in expected.items():
        aliases.setdefault(value.data_ptr(), set()).add(name)
    stored = _stored_shapes(path)
    covered = {name for tied in aliases.values() if tied & set(stored) for name in tied}
    shared = set(stored) & set(expected)
    for problem, names in (
        ("lacks", set(expected) - covered - computed_weights(model)),
        ("has unexpected", set(stored) - set(expected)),
        ("misfits", {name for name in shared if stored[name] != expected[name].shape}),
    ):
        if names:
            raise InputError(
                f"{path} {problem} {len(names)} weights, first {sorted(names)[0]}",
                id="weights-do-not-fit",
            )
    for name in stored:  # opened for each weight anew: what was read does not stay mapped
        with safe_open(path, framework="pt") as file:
            expected[name].copy_(file.get_tensor(name))
    model.tie_weights()  # type: ignore[operator]


def _stored_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(
            f"{path} cannot be read as weights: {error}; write the checkpoint again",
            id="weights-unreadable",
        ) from error
