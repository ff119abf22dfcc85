"""`compress verify`: is an output directory still what was written?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console


@o.command(example="compress verify out")
def verify(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `compress` wrote, with a manifest.json.")
    ],
) -> int:
    """Check files against manifest.json, and graphs against weights."""
    from compressor.pipeline.verification import verify_directory

    outcome = verify_directory(directory, console)
    lines = [f"{directory}: {outcome.files} files are as they were written"]
    lines += [f"  opened {opened}" for opened in outcome.opened]
    lines += [
        f"  {c.name}: {c.largest_difference:.1e} (tolerance {c.tolerance:.1e})"
        for c in outcome.checks
    ]
    if outcome.unlisted:
        lines.append(f"  not listed, and not read: {', '.join(outcome.unlisted)}")
    checks = [check.model_dump() for check in outcome.checks]
    console.result("\n".join(lines), asdict(outcome) | {"checks": checks})
    return 0
