"""Write docs/errors.md: exit statuses, and every error by its id, as the sources have them.

python -m benchmarks.errors
"""

from __future__ import annotations

import re

from benchmarks.error_sources import Error, Sources
from benchmarks.pages import ROOT, markdown_table

PAGE = ROOT / "docs" / "errors.md"
_MOST = 300  # characters of a message
_TITLE = """# Exit statuses and errors

Written by `python -m benchmarks.errors` from the sources; a test holds it to that. With `--json` a
command that fails prints `error` (the message), `id` and `exit_status`. A message says what is
wrong, where, and what to do; here `…` stands for values, in a
message or an id. Ids stay when wordings change."""
_STATUSES = [
    ("0", "done, every rule of the gate met"),
    ("1", "a rule is not met ([or inconclusive](ci.md#three-verdicts)), and nothing else"),
    ("2", "wrong usage or recipe"),
    ("3", "environment: a device, provider or package is missing or clashes; too little memory"),
    ("4", "input: an unsupported architecture, a missing or malformed file or data; a full disk"),
    ("5", "verification failed: pruned ≠ masked, or ONNX ≠ PyTorch"),
    ("70", "a bug; `COMPRESS_DEBUG=1` shows the traceback"),
    ("130", "interrupted; the message says whether the same command goes on or starts again"),
]


def page() -> str:
    """The page's text."""
    parts = [_TITLE, markdown_table(["exit status", "meaning"], "l", _STATUSES)]
    found = {(error.status, error.id, _cell(error.message)) for error in errors()}
    names = {number: re.split("[:;]", text)[0] for number, text in _STATUSES}
    for status in sorted({status for status, *_ in found}):
        rows = [[f"`{id}`", text] for number, id, text in sorted(found) if number == status]
        parts.append(f"## {status}: {names[str(status)]}")
        parts.append(markdown_table(["id", "message"], "l", rows))
    return "\n\n".join(parts) + "\n"


def errors() -> set[Error]:
    """Every error of the package."""
    return Sources(ROOT / "compressor").errors()


def _cell(text: str) -> str:
    """A message in a table's cell; what stands in backquotes is code, where `<` means itself."""
    plain = re.sub(r"…(\s*…)+", "…", " ".join(text.split())).replace("|", "\\|")
    plain = plain if len(plain) <= _MOST else f"{plain[:_MOST]}…"
    parts = plain.split("`")
    if len(parts) % 2 == 0:  # the last one is cut, or no code
        parts[-2:] = ["'".join(parts[-2:])]
    return "`".join(x if n % 2 else x.replace("<", "&lt;") for n, x in enumerate(parts))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
