"""The example in examples/http: concurrent requests get the answers of the artifact."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import runpy
import shutil
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compressor.runtime import Classifier
from tests.helpers import other_user, toy
from tests.helpers.command_line import invoke

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "http" / "serve.py"


@pytest.fixture(scope="module")
def address(bert: Path) -> Iterator[str]:
    running = runpy.run_path(str(SCRIPT))["server"](str(bert), 0, threads=1)
    running.RequestHandlerClass.log_message = lambda *arguments: None
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()
    thread.join()


def ask(address: str, data: bytes) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data), timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_requests_at_the_same_time_get_the_artifacts_answers(address: str, bert: Path):
    model = Classifier(bert, threads=1)
    requests = [toy.sentences(5, seed=seed) for seed in range(8)]
    bodies = [json.dumps({"texts": texts}).encode() for texts in requests]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, [address] * 8, bodies))
    assert answers == [(200, {"answers": model.classify(texts)}) for texts in requests]


def test_it_says_when_it_is_ready(address: str):
    with urllib.request.urlopen(f"{address}/health", timeout=60) as reply:
        assert json.load(reply) == {"ready": True}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{address}/other", timeout=60)


@pytest.mark.parametrize(
    "data", [b"", b"[", b"[" * 100_000, b"{}", b'{"texts": "one"}', b'{"texts": [1]}', b"\xff"]
)
def test_a_body_that_it_cannot_read(address: str, data: bytes):
    status, answer = ask(address, data)
    assert status == 400
    assert "texts" in answer["error"]


def test_requests_have_limits(address: str):
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    connection.putrequest("POST", "/")
    connection.putheader("Content-Length", "1000001")
    connection.endheaders()  # refused before the body is sent
    assert connection.getresponse().status == 413
    connection.close()
    assert ask(address, json.dumps({"texts": ["a"] * 1_001}).encode())[0] == 413


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can be another user")
def test_the_steps_of_its_dockerfile_serve_as_another_user():
    """What is copied keeps its modes and belongs to root; the user is the one that it names."""
    steps = SCRIPT.with_name("Dockerfile").read_text(encoding="utf-8").splitlines()
    image = Path(tempfile.mkdtemp())  # pytest's own folders are closed to others
    try:
        image.chmod(0o755)
        invoke("export", "-m", toy.classifier(image / "dense"), "-o", image / "context" / "out")
        for words in (line.split()[1:] for line in steps if line.startswith("COPY")):
            *names, target = words
            for name in names:
                source = image / "context" / name if name == "out" else ROOT / name
                _copy(source, image / target.lstrip("/"), whole=target.endswith("/"))
        (user,) = (line.split()[1] for line in steps if line.startswith("USER"))
        secret = Path(shutil.copytree(image / "srv" / "out", image / "secret"))
        (secret / "onnx" / "model.onnx_data").chmod(0o600)
        done = other_user.start(
            "serve", image / "src", image / "srv" / "serve.py", image / "srv" / "out", secret, user
        )
        assert done.returncode == 0, done.stderr
        package, uid, problem, ready, answers = json.loads(done.stdout)
        assert package.startswith(str(image / "src"))
        assert uid == pwd.getpwnam("nobody").pw_uid
        assert problem.startswith(f"cannot read {secret}/onnx/model.onnx_data: Permission denied")
        assert ready == {"ready": True}
        expected = Classifier(image / "srv" / "out", threads=1).classify(["w3 w4", "w9"])
        assert answers == {"answers": expected}
    finally:
        shutil.rmtree(image)


def _copy(source: Path, target: Path, *, whole: bool) -> None:
    """As Docker does: a folder's contents into a folder, a file under a name or into a folder."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "example"))
    else:
        target = target / source.name if whole else target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
