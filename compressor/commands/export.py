"""`compress export`: ONNX graphs of a checkpoint, dense or pruned, checked against PyTorch."""

from __future__ import annotations

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.request.recipe import ExportRequest


@o.command(ExportRequest, example="compress export -m MODEL -o out")
def export(request: ExportRequest, output: o.Output) -> int:
    """Write OUTPUT/onnx, which `compressor.runtime` runs without PyTorch.

    With --layout optimum OUTPUT itself is a directory that optimum's ORTModel classes open, with
    --layout ctranslate2 one for ctranslate2.Translator.
    """
    from compressor.pipeline.run import export_checkpoint

    checks = export_checkpoint(request, output)
    lines = [f"wrote {output / 'onnx' if request.layout == 'compress' else output}"]
    lines += [
        f"  {c.name}: {c.largest_difference:.1e} (tolerance {c.tolerance:.1e}); {c.detail}"
        for c in checks
    ]
    facts = {"output": str(output), "checks": [c.model_dump() for c in checks]}
    console.result("\n".join(lines), facts)
    return 0
