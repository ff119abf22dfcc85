"""Processes that may not read every file, whoever runs the tests: for root, privileges are dropped.

    python -m tests.helpers.other_user denied CASES      JSON: [[path, mode, [argument, …]], …]
    python -m tests.helpers.other_user serve SOURCES SCRIPT ARTIFACT SECRET USER

`denied` prints for each case how `compress` ends, [status, message], while a path has a mode.
`serve` does what examples/http/Dockerfile does after its build, as its user.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run this module in a process of its own, as it is called above."""
    command = [sys.executable, "-m", "tests.helpers.other_user", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def can_be_denied() -> bool:
    """Whether a process can be had that root's rights do not let read everything."""
    return os.name == "posix" and (os.geteuid() != 0 or shutil.which("setpriv") is not None)


def denied(cases: Sequence[tuple[Path, int, list[str]]]) -> list[tuple[int, str]]:
    """How `compress` ends while a path has a mode: status and the last line of its messages."""
    rights = "-dac_override,-dac_read_search"
    drop = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
    told = json.dumps([[str(path), mode, words] for path, mode, words in cases])
    command = [sys.executable, "-m", "tests.helpers.other_user", "denied", told]
    done = subprocess.run(
        [*drop, *command] if os.geteuid() == 0 else command,
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [(status, message) for status, message in json.loads(done.stdout)]


def _denied(cases: str) -> None:
    from compressor.commands import invoke

    found = []
    for name, mode, words in json.loads(cases):
        path, said = Path(name), io.StringIO()
        before = path.stat().st_mode & 0o777
        path.chmod(mode)
        try:
            with (
                contextlib.redirect_stderr(said),
                contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())),
            ):
                status = invoke(words)
        finally:
            path.chmod(before)
        found.append((status, said.getvalue().strip().rpartition("\n")[2]))
    print(json.dumps(found))


def _serve(sources: str, script: str, artifact: str, secret: str, user: str) -> None:
    import pwd
    import runpy
    import urllib.request

    sys.path.insert(0, sources)
    for name in [name for name in sys.modules if name.partition(".")[0] == "compressor"]:
        del sys.modules[name]
    served = runpy.run_path(script)
    served["open_model"](artifact, threads=1)  # the interpreter's own files may be root's alone
    "localhost".encode("idna")  # as are codecs that are imported late
    import compressor
    from compressor.errors import InputError

    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    problem = ""
    try:
        served["open_model"](secret, threads=1)
    except InputError as error:
        problem = str(error)
    with served["server"](artifact, 0, threads=1) as running:
        running.RequestHandlerClass.log_message = lambda *arguments: None
        threading.Thread(target=running.serve_forever, daemon=True).start()
        address = f"http://localhost:{running.server_port}"
        ready = json.load(urllib.request.urlopen(f"{address}/health", timeout=60))
        body = json.dumps({"texts": ["w3 w4", "w9"]}).encode()
        answers = json.load(urllib.request.urlopen(urllib.request.Request(address, body)))
        running.shutdown()
    print(json.dumps([compressor.__file__, os.getuid(), problem, ready, answers]))


if __name__ == "__main__":
    {"denied": _denied, "serve": _serve}[sys.argv[1]](*sys.argv[2:])
