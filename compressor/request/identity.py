"""What must be the same for a stopped run to go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from compressor import __version__
from compressor.recovery import extra_text
from compressor.request.recipe import Recipe
from compressor.storage.hashes import fingerprint, sha256_of


def run_identity(
    recipe: Recipe, device: str, weights: list[Path], rows: Mapping[str, str | None]
) -> dict[str, object]:
    """All options but the gate's rules and checks, and fingerprints of all inputs.

    Args:
        weights: the files of the checkpoint.
        rows: what rows are for -> their SHA-256.
    """
    text = recipe.export.target_text
    extra = extra_text(recipe.recovery)
    return {
        **recipe.model_dump(mode="json", exclude={"gate": True, "model": {"verify"}}),
        "device": device,
        "version": __version__,
        "weights": fingerprint(weights),
        **{f"{name}_sha256": digest for name, digest in rows.items()},
        "target_text_sha256": text and sha256_of(Path(text)),
        "distill_text_sha256": extra and sha256_of(extra.path),
    }
