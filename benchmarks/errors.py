"""Write docs/errors.md: exit statuses, and every error by its id, as the sources have them.

python -m benchmarks.errors
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from benchmarks.pages import ROOT, markdown_table
from compressor import errors

PAGE = ROOT / "docs" / "errors.md"
_MOST = 300  # characters of a message
_TITLE = """# Exit statuses and errors

Written by `python -m benchmarks.errors` from the sources; a test holds it to that. With `--json` a
command that fails prints `error` (the message), `id` and `exit_status`. A message says what is
wrong, where, and what to do; here `…` stands for its values. Ids stay when wordings change."""
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
    found = sorted(set(_errors()))
    names = {number: text.partition(":")[0] for number, text in _STATUSES}
    for status in sorted({status for status, *_ in found}):
        rows = [[f"`{id}`", text] for number, id, text in found if number == status]
        parts.append(f"## {status}: {names[str(status)]}")
        parts.append(markdown_table(["id", "message"], "l", rows))
    return "\n\n".join(parts) + "\n"


def _errors() -> Iterator[tuple[int, str, str]]:
    """Exit status, id and message of each error that is made somewhere."""
    statuses = {
        name: kind.exit_code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.CompressError)
    }
    for path in sorted((ROOT / "compressor").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            ids = [word.value for word in node.keywords if word.arg == "id"]
            if name in statuses and ids and isinstance(ids[0], ast.Constant):
                yield statuses[name], str(ids[0].value), _cell(_text(node.args[0]))


def _text(node: ast.expr) -> str:
    """A message as it is written, with … for values."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…"


def _cell(text: str) -> str:
    plain = re.sub(r"…(\s*…)+", "…", " ".join(text.split()))
    plain = plain.replace("|", "\\|").replace("<", "&lt;")
    return plain if len(plain) <= _MOST else f"{plain[:_MOST]}…"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
