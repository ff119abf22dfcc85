"""Serve an artifact over HTTP; needs the runtime and Python's standard library.

    python serve.py ARTIFACT [--port 8000] [--threads 1] [--engine onnxruntime]

POST /  {"texts": ["The train is late again."]}  ->  {"answers": ["..."]}
GET /health  ->  {"ready": true}, once the first answer was computed

Requests are computed in threads of their own that share one model. Behind a load balancer, start as
many processes as there are cores, or one with `--threads 1` and that many requests at a time.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from compressor.errors import CompressError
from compressor.runtime import Classifier, Translator
from compressor.runtime.opening import read_artifact

MOST_BYTES = 1_000_000  # of a request
MOST_TEXTS = 1_000


def open_model(directory: str, **settings: Any) -> Any:
    """What answers a list of texts, warmed up."""
    if read_artifact(Path(directory)).task == "classification":
        answer = Classifier(directory, **settings).classify
    else:
        answer = Translator(directory, **settings).translate
    answer(["warm up"])  # the first answer takes memory and time that later ones do not
    return answer


class Handler(BaseHTTPRequestHandler):
    """One request; `answer` is the model's."""

    answer: Any

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply(200, {"ready": True})
        else:
            self.reply(404, {"error": "there are GET /health and POST /"})

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if length > MOST_BYTES:
                self.close_connection = True
                self.reply(413, {"error": f"a request has at most {MOST_BYTES} bytes"})
                return
            texts = json.loads(self.rfile.read(max(length, 0)))["texts"]
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            self.reply(400, {"error": 'send {"texts": ["...", "..."]}'})
            return
        if len(texts) > MOST_TEXTS:
            self.reply(413, {"error": f"a request has at most {MOST_TEXTS} texts"})
            return
        try:
            self.reply(200, {"answers": type(self).answer(texts)})
        except CompressError as error:
            self.reply(500, {"error": str(error)})

    def reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def server(directory: str, port: int, **settings: Any) -> ThreadingHTTPServer:
    """A server on all addresses; port 0 takes a free one."""
    model = staticmethod(open_model(directory, **settings))
    return ThreadingHTTPServer(("", port), type("Bound", (Handler,), {"answer": model}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=1, help="of one request")
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--precision")
    args = parser.parse_args()
    settings = {"threads": args.threads, "engine": args.engine, "precision": args.precision}
    with server(args.artifact, args.port, **settings) as running:
        print(f"serving {args.artifact} at port {running.server_port}", flush=True)
        running.serve_forever()


if __name__ == "__main__":
    main()
