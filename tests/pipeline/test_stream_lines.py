"""Artifacts in a shell pipeline: real processes, and the reading and writing of lines.

What they must answer is what the runtime answers to the same texts, which other tests compare with
PyTorch.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compressor.commands import invoke as run
from compressor.commands.stream_lines import Lines
from compressor.errors import InputError, UsageError
from compressor.runtime import Classifier, Translator
from tests.helpers import runtime_artifacts, toy
from tests.helpers.command_line import ROOT, invoke
from tests.helpers.errors import raises

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def translator() -> Path:
    return runtime_artifacts.translator().directory


@pytest.fixture(scope="module")
def classifier() -> Path:
    return runtime_artifacts.classifier("bert").directory


def process(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """The command in a process of its own, with pipes where `options` name nothing else."""
    words = [sys.executable, "-m", "compressor", *map(str, arguments), "--threads", "1"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(words, cwd=ROOT, **pipes | options)


def compress(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command in this process, with streams of its own: a process takes a second to start."""
    names = ("stdin", "stdout", "stderr")
    streams = {name: io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n") for name in names}
    streams["stdin"] = io.TextIOWrapper(io.BytesIO(stdin))
    words = [*map(str, arguments), "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        status = run(words)
    written = []
    for name in ("stdout", "stderr"):
        streams[name].flush()
        written.append(streams[name].buffer.getvalue())
    return subprocess.CompletedProcess(words, status, *written)


def test_lines_are_translated_in_their_order(translator):
    texts = [*toy.sentences(9), "", "w5 \u2028 w6\x0cw7", " \t", *toy.sentences(4, seed=1), "w9 w8"]
    ends = ["\n", "\r\n"] * len(texts)
    stdin = "".join(text + end for text, end in zip(texts, ends, strict=False)).rstrip("\r\n")
    done = compress("translate", translator, "--chunk-lines", "6", stdin=stdin.encode())
    assert (done.returncode, done.stderr) == (0, b"")
    want = Translator(translator, threads=1).translate(texts)
    assert done.stdout.decode() == "".join(f"{line}\n" for line in want)
    assert want[9] == want[11] == ""
    assert len(set(want)) > 5


def test_options_of_translating_reach_the_search(translator, tmp_path):
    texts, out = toy.sentences(5, seed=2), tmp_path / "out"
    (tmp_path / "a").write_text("\n".join(texts[:3]), encoding="utf-8")  # without a last end
    options = ["--num-beams", 3, "--max-new-tokens", 6, "-b", 2, "--batch-tokens", 20]
    options += ["--jsonl", "--precision", "fp32", "--device", "cpu", "-o", out]
    rest = "\n".join(texts[3:]).encode()
    done = compress("translate", translator, tmp_path / "a", "-", *options, stdin=rest)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    want = Translator(translator, threads=1).translate(texts, num_beams=3, max_new_tokens=6)
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == [
        {"line": number, "translation": text} for number, text in enumerate(want, 1)
    ]


def test_output_files_are_made_and_never_replaced(translator, tmp_path):
    made = tmp_path / "some" / "where" / "out"
    assert compress("translate", translator, "-o", made, stdin=b"w5\n").returncode == 0
    before = made.read_bytes()
    assert before.count(b"\n") == 1
    for path in (made, made / "below" / "x"):
        assert compress("translate", translator, "-o", path, stdin=b"w5\n").returncode == 4
    assert made.read_bytes() == before


def test_answers_come_while_the_input_is_still_open(translator):
    texts = toy.sentences(4, seed=3)
    want = Translator(translator, threads=1).translate(texts)
    with process("translate", translator, "--chunk-lines", "2") as running:
        got = []
        for start in (0, 2):
            running.stdin.write("".join(f"{t}\n" for t in texts[start : start + 2]).encode())
            running.stdin.flush()
            got += [running.stdout.readline().decode().rstrip("\n") for _ in range(2)]
        assert got == want
        running.stdin.close()
        assert running.wait(60) == 0


def test_cut_lines_are_reported_once_at_the_end(translator):
    long = " ".join(["w7"] * 60)
    stdin = "\n".join([long, "w5", long, "", "w6", long]).encode()
    most = Translator(translator, threads=1).artifact.max_source_tokens
    done = compress("translate", translator, "--chunk-lines", "2", stdin=stdin)
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 6)
    assert done.stderr.decode() == (
        f"warning: 3 of 6 texts were cut to the {most} tokens that the model can read; "
        "split them into sentences\n"
    )
    assert compress("translate", translator, "-q", stdin=stdin).stderr == b""


def test_text_that_is_not_utf8_is_an_error_with_its_line(translator, tmp_path):
    given, out = ("translate", translator, "--chunk-lines", "1"), tmp_path / "out"
    done = compress(*given, stdin=b"w5\nw6\nw7 \xff w8\nw9\n")
    assert (done.returncode, done.stdout.count(b"\n")) == (4, 2)
    assert b"error: standard input:3: byte 0xff is not UTF-8" in done.stderr
    assert compress(*given, "-o", out, stdin=b"w5\nw7 \xff w8\n").returncode == 4
    assert not out.exists()


def test_a_reader_that_goes_away_is_no_error(translator):
    texts = toy.sentences(40, seed=4)
    writer = process("translate", translator)
    head = subprocess.Popen(["head", "-1"], stdin=writer.stdout, stdout=subprocess.PIPE)
    writer.stdout.close()  # head alone reads it
    try:
        # More than a pipe holds, so that writing must meet the closed end.
        writer.stdin.write(("\n".join(texts) + "\n" + "\n" * 200_000).encode())
        writer.stdin.close()
    except BrokenPipeError:
        pass  # it ended before it had read everything, as it should
    writer.stdin = None
    first, _ = head.communicate(timeout=60)
    _, errors = writer.communicate(timeout=60)
    assert (writer.returncode, errors) == (0, b"")
    want = Translator(translator, threads=1).translate(texts)
    assert first.decode().rstrip("\n") == want[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(translator):
    with (
        Path("/dev/full").open("wb") as full,
        process("translate", translator, stdout=full) as running,
    ):
        _, errors = running.communicate(b"w5\n", timeout=60)
    assert running.returncode == 4
    assert b"standard output: No space left on device" in errors


def test_labels_and_probabilities_of_pairs(classifier):
    texts, pairs = toy.sentences(5, seed=6), toy.sentences(5, seed=7)
    lines = [f"{text}\t{pair}" for text, pair in zip(texts, pairs, strict=True)]
    stdin = "\n".join([*lines[:2], "", *lines[2:]]).encode()
    model = Classifier(classifier, threads=1)
    want = model.probabilities(texts, pairs)

    done = compress("classify", classifier, "--pairs", "--top-k", "2", stdin=stdin)
    assert (done.returncode, done.stderr) == (0, b"")
    got = done.stdout.decode().split("\n")
    assert (got.pop(2), got.pop()) == ("", "")
    for line, row in zip(got, want, strict=True):
        first, one, second, two = line.split("\t")
        order = row.argsort()[::-1][:2]
        assert [first, second] == [model.labels[label] for label in order]
        assert [float(one), float(two)] == pytest.approx(row[order].tolist(), abs=2e-6)

    done = compress("classify", classifier, "--pairs", "--probabilities", "--jsonl", stdin=stdin)
    rows = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert rows.pop(2) == {"line": 3, "label": None, "probabilities": {}}
    for row, expected in zip(rows, want, strict=True):
        probabilities = dict(zip(model.labels, expected.tolist(), strict=True))
        assert row["probabilities"] == pytest.approx(probabilities, abs=2e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "problem"),
    [
        (["translate", "BERT"], InputError, "artifact-of-another-task"),
        (["translate", "MARIAN", "nothing.txt"], InputError, "file-unreadable"),
        (["translate", "MARIAN", "--precision", "fp8"], UsageError, "precision-not-in-artifact"),
        (["predict", "BERT", "--query", "w5"], UsageError, "option-without-use"),
        (["predict", "MARIAN", "-o", "a.npy"], UsageError, "output-not-array"),
        (["classify", "BERT", "--pairs"], InputError, "cell-count-differs"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_asked_for(arguments, error, problem, classifier, translator, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"w5\n")))
    directories = {"BERT": classifier, "MARIAN": translator}
    with raises(error, problem) as caught:
        invoke(*(directories.get(word, word) for word in arguments))
    assert problem != "cell-count-differs" or "standard input:1" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\n\nb\r\n\r\nc", ["a", "", "b", "", "c"]),
        ("a\u2028b\u0085c\x0bd\re\x1cf\n".encode(), ["a\u2028b\u0085c\x0bd\re\x1cf"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
    ],
)
def test_what_a_line_is(data, lines, tmp_path):
    (tmp_path / "in.txt").write_bytes(data)
    assert list(Lines([tmp_path / "in.txt"])) == lines
