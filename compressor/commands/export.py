"""`compress export`: ONNX graphs of a checkpoint, dense or pruned, checked against PyTorch."""

from __future__ import annotations

import typer

from compressor.commands import options as o
from compressor.commands.console import console


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    output: o.Output,
    model: o.Model = None,
    target_text: o.TargetText = None,
    precision: o.Precision = None,
    layout: o.Layout = "compress",
    revision: o.Revision = None,
    allow_pickle: o.AllowPickle = None,
    trust_remote_code: o.TrustRemoteCode = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> int:
    """Write OUTPUT/onnx, which `compressor.runtime` runs without PyTorch.

    With --layout optimum OUTPUT itself is a directory that optimum's ORTModel classes open.
    """
    from compressor.pipeline.recipe import build_recipe
    from compressor.pipeline.single_steps import export_checkpoint

    given = {
        "model": model, "revision": revision, "allow_pickle": allow_pickle,
        "trust_remote_code": trust_remote_code, "precision": precision,
        "target_text": target_text,
    }  # fmt: skip
    checks = export_checkpoint(build_recipe(given), output, layout)
    lines = [f"wrote {output if layout == 'optimum' else output / 'onnx'}"]
    lines += [
        f"  {c.name}: {c.largest_difference:.1e} (tolerance {c.tolerance:.1e}); {c.detail}"
        for c in checks
    ]
    console.result(
        "\n".join(lines), {"output": str(output), "checks": [c.model_dump() for c in checks]}
    )
    return 0
