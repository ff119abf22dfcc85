"""The example in examples/http: concurrent requests get the answers of the artifact."""

from __future__ import annotations

import json
import runpy
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compressor.runtime import Classifier
from tests.helpers import toy

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


def test_what_it_does_not_answer(address: str):
    with urllib.request.urlopen(f"{address}/health", timeout=60) as reply:
        assert json.load(reply) == {"ready": True}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{address}/other", timeout=60)
    for data in (b"", b"[" * 100_000, b"{}", b'{"texts": "one"}', b'{"texts": [1]}', b"\xff"):
        status, answer = ask(address, data)
        assert status == 400
        assert "texts" in answer["error"]
    assert ask(address, json.dumps({"texts": ["a"] * 1_001}).encode())[0] == 413


def test_its_dockerfile_copies_what_is_there():
    """A folder's contents into a folder, a file under a name or into a folder."""
    steps = SCRIPT.with_name("Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [name for x in steps if x.startswith("COPY") for name in x.split()[1:-1]]
    assert "compressor" in copied
    assert all((ROOT / name).exists() for name in copied if name != "out")
