"""The example in examples/http: concurrent requests get the answers of the artifact."""

from __future__ import annotations

import http.client
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
from tests.helpers import runtime_artifacts, toy

SCRIPT = Path(__file__).parents[2] / "examples" / "http" / "serve.py"


@pytest.fixture(scope="module")
def classifier() -> Path:
    return runtime_artifacts.classifier("bert").directory


@pytest.fixture(scope="module")
def address(classifier: Path) -> Iterator[str]:
    running = runpy.run_path(str(SCRIPT))["server"](str(classifier), 0, threads=1)
    running.RequestHandlerClass.log_message = lambda *arguments: None
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()
    thread.join()


def ask(address: str, data: bytes) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data), timeout=60) as found:
            return found.status, json.load(found)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_requests_at_the_same_time_get_the_artifacts_answers(address: str, classifier: Path):
    model = Classifier(classifier, threads=1)
    requests = [toy.sentences(5, seed=seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda texts: ask(address, json.dumps({"texts": texts}).encode()), requests)
        )
    assert found == [(200, {"answers": model.classify(texts)}) for texts in requests]


def test_it_tells_when_it_is_ready(address: str):
    with urllib.request.urlopen(f"{address}/health", timeout=60) as found:
        assert json.load(found) == {"ready": True}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{address}/other", timeout=60)


@pytest.mark.parametrize(
    "data", [b"", b"[", b"[" * 100_000, b"{}", b'{"texts": "one"}', b'{"texts": [1]}', b"\xff"]
)
def test_what_it_cannot_read_is_told(address: str, data: bytes):
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
