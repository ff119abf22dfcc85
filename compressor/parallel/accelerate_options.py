"""The options of accelerate's configuration, which its launcher passes on in the environment."""

from __future__ import annotations

import os
from typing import Literal

from compressor.errors import EnvironmentProblem

_USE_FSDP = "ACCELERATE_USE_FSDP"
_PRECISION = "ACCELERATE_MIXED_PRECISION"
# Variable -> the option of accelerate's configuration, and the values that a run supports, of which
# the first stands for a missing variable; empty for an option that must be left out.
_SUPPORTED: dict[str, tuple[str, tuple[str, ...]]] = {
    _PRECISION: ("mixed_precision", ("no", "bf16")),
    "ACCELERATE_USE_DEEPSPEED": ("DeepSpeed", ("false",)),
    "ACCELERATE_USE_MEGATRON_LM": ("Megatron-LM", ("false",)),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("parallelism_config", ("false",)),
}
_SUPPORTED_WITH_FSDP: dict[str, tuple[str, tuple[str, ...]]] = {
    "FSDP_VERSION": ("fsdp_version", ("2",)),
    "FSDP_OFFLOAD_PARAMS": ("fsdp_offload_params", ("false",)),
    "FSDP_RESHARD_AFTER_FORWARD": ("fsdp_reshard_after_forward", ("true",)),
    "FSDP_ACTIVATION_CHECKPOINTING": ("fsdp_activation_checkpointing", ("false",)),
    "FSDP_AUTO_WRAP_POLICY": ("fsdp_auto_wrap_policy", ("TRANSFORMER_BASED_WRAP",)),
    "FSDP_TRANSFORMER_CLS_TO_WRAP": ("fsdp_transformer_layer_cls_to_wrap", ("",)),
    "FSDP_IGNORED_MODULES": ("fsdp_ignored_modules", ("",)),
}


def training_precision() -> Literal["fp32", "bf16"] | None:
    """The configured mixed precision; None if it is not configured.

    Raises:
        EnvironmentProblem: it is one that a run does not support.
    """
    return "bf16" if _value(_PRECISION, *_SUPPORTED[_PRECISION]) == "bf16" else None


def wants_cpu() -> bool:
    """Whether the configuration disables GPUs."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1", "yes")


def wants_shards() -> bool:
    """Whether the configuration enables FSDP.

    The variable for it is deleted: transformers would load models without weights on all ranks but
    one.

    Raises:
        EnvironmentProblem: the configuration asks for something that a run does not support.
    """
    shards = os.environ.get(_USE_FSDP, "").lower() == "true"
    for variable, row in (_SUPPORTED | (_SUPPORTED_WITH_FSDP if shards else {})).items():
        _value(variable, *row)
    if shards:
        del os.environ[_USE_FSDP]
    return shards


def _value(variable: str, option: str, supported: tuple[str, ...]) -> str:
    """The value of an environment variable in lower case, if a run supports it.

    Raises:
        EnvironmentProblem: it does not.
    """
    value = os.environ.get(variable, supported[0])
    if value.lower() not in map(str.lower, supported):
        advice = f"set it to {' or '.join(supported)}" if supported[0] else "leave it out"
        raise EnvironmentProblem(
            f"accelerate's {option} is {value}, which `compress run` does not support; {advice}",
            id="accelerate-option-unsupported",
        )
    return value.lower()
