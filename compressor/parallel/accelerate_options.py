"""Accelerate's configuration, which `accelerate launch` passes as environment variables."""

from __future__ import annotations

import os
from typing import Literal

from compressor.errors import EnvironmentProblem

_USE_FSDP = "ACCELERATE_USE_FSDP"
# Parallelism of accelerate that a run does not support: variable -> its name.
_UNSUPPORTED = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "tensor, context or replicated parallelism",
}
# Option of accelerate's configuration -> its variable, the one supported value (None: the option
# must be left out), and accelerate's default.
_FSDP: dict[str, tuple[str, str | None, str | None]] = {
    "fsdp_version": ("FSDP_VERSION", "2", "1"),
    "fsdp_offload_params": ("FSDP_OFFLOAD_PARAMS", "false", "false"),
    "fsdp_reshard_after_forward": ("FSDP_RESHARD_AFTER_FORWARD", "true", "true"),
    "fsdp_activation_checkpointing": ("FSDP_ACTIVATION_CHECKPOINTING", "false", "false"),
    "fsdp_auto_wrap_policy": (
        "FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP", "TRANSFORMER_BASED_WRAP",
    ),
    "fsdp_transformer_layer_cls_to_wrap": ("FSDP_TRANSFORMER_CLS_TO_WRAP", None, None),
    "fsdp_ignored_modules": ("FSDP_IGNORED_MODULES", None, None),
}  # fmt: skip


def training_precision() -> Literal["fp32", "bf16"] | None:
    """The configured mixed precision; None if it is not configured."""
    wanted = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if wanted not in ("no", "bf16"):
        raise EnvironmentProblem(
            f"accelerate's mixed_precision is {wanted!r}, and `compress run` trains in float32 or "
            "bf16; set it to 'no' or 'bf16'",
            id="accelerate-option-unsupported",
        )
    return "bf16" if wanted == "bf16" else None


def wants_cpu() -> bool:
    """Whether the configuration disables GPUs."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1", "yes")


def wants_shards() -> bool:
    """Whether the configuration enables FSDP.

    The variable is deleted, since transformers reads it too, and would then load models without
    weights on all ranks but the first.

    Raises:
        EnvironmentProblem: another kind of parallelism, or an unsupported option of FSDP.
    """
    for variable, name in _UNSUPPORTED.items():
        if _is_true(variable):
            raise EnvironmentProblem(
                f"accelerate is configured for {name}, and `compress run` supports data "
                "parallelism and FSDP only; configure several CPUs or GPUs, or FSDP",
                id="accelerate-option-unsupported",
            )
    if not _is_true(_USE_FSDP):
        return False
    for option, (variable, supported, default) in _FSDP.items():
        value = os.environ.get(variable, default)
        if (value or "").lower() != (supported or "").lower():
            advice = "leave it out" if supported is None else f"set it to {supported}"
            raise EnvironmentProblem(
                f"accelerate's {option} is {value}, which `compress run` does not support; "
                f"{advice}",
                id="accelerate-option-unsupported",
            )
    del os.environ[_USE_FSDP]
    return True


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() == "true"
