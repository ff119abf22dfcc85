"""What accelerate's configuration says of a run: `accelerate launch` hands it on as variables."""

from __future__ import annotations

import os
from typing import Literal

from compressor.errors import EnvironmentProblem

_USE_FSDP = "ACCELERATE_USE_FSDP"
# What accelerate can be configured to share out that a run does not: variable -> its name.
_NOT_SHARED = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "tensor, context or replicated parallelism",
}


# Option of accelerate's configuration -> its variable, the one value that a run has (None: it has
# to be left out), and the value that no entry stands for.
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
    """What the configuration says of mixed precision; None if it says nothing.

    Raises:
        EnvironmentProblem: it asks for what a run cannot do.
    """
    wanted = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if wanted not in ("no", "bf16"):
        raise EnvironmentProblem(
            f"accelerate's configuration asks for mixed precision in {wanted}, and `compress run` "
            "trains in float32 or bf16; set mixed_precision to 'no' or 'bf16'",
            id="accelerate-option-unsupported",
        )
    return "bf16" if wanted == "bf16" else None


def wants_cpu() -> bool:
    """Whether the configuration says to leave GPUs alone."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1", "yes")


def wants_shards() -> bool:
    """Whether the configuration asks for FSDP.

    transformers looks for this, too: it then leaves all ranks but the first with models without
    weights. So the variable is gone afterwards.

    Raises:
        EnvironmentProblem: it asks for something else than rows or FSDP to be shared out, or for an
            FSDP that a run does not have.
    """
    for variable, name in _NOT_SHARED.items():
        if _is_true(variable):
            raise EnvironmentProblem(
                f"accelerate's configuration asks for {name}, and `compress run` has rows and FSDP "
                "alone to share out; configure several CPUs or GPUs, or FSDP",
                id="accelerate-option-unsupported",
            )
    if not _is_true(_USE_FSDP):
        return False
    for option, (variable, wanted, usual) in _FSDP.items():
        found = os.environ.get(variable, usual)
        if (found or "").lower() != (wanted or "").lower():
            advice = "leave it out" if wanted is None else f"set it to {wanted}"
            raise EnvironmentProblem(
                f"accelerate's configuration has {option} {found}, which `compress run` does not "
                f"do; {advice}",
                id="accelerate-option-unsupported",
            )
    del os.environ[_USE_FSDP]
    return True


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() == "true"
