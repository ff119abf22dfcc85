"""Artifacts in a shell pipeline: real processes, and the reading and writing of lines.

What they must answer is what the runtime answers to the same texts, which other tests compare with
PyTorch.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import pytest

from compressor.commands import invoke as run
from compressor.errors import CompressError, InputError, UsageError
from compressor.pipeline.stream_lines import Lines, line_writer, serve
from compressor.progress import Silent
from compressor.runtime import Classifier, Translator
from tests.helpers import runtime_artifacts, toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def translator() -> Path:
    return runtime_artifacts.translator().directory


@pytest.fixture(scope="module")
def classifier() -> Path:
    return runtime_artifacts.classifier("bert").directory


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "compressor", *map(str, arguments), "--threads", "1"]


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


def test_lines_are_translated_in_their_order(translator: Path) -> None:
    texts = [*toy.sentences(9), "", "w5 \u2028 w6\x0cw7", " \t", *toy.sentences(4, seed=1), "w9 w8"]
    ends = ["\n", "\r\n"] * len(texts)
    stdin = "".join(text + end for text, end in zip(texts, ends, strict=False)).rstrip("\r\n")
    words = command("translate", translator, "--chunk-lines", "6")
    done = subprocess.run(words, input=stdin.encode(), capture_output=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    want = Translator(translator, threads=1).translate(texts)
    assert done.stdout.decode() == "".join(f"{line}\n" for line in want)
    assert want[9] == want[11] == ""
    assert len(set(want)) > 5


def test_options_of_translating_reach_the_search(translator: Path, tmp_path: Path) -> None:
    texts = toy.sentences(5, seed=2)
    (tmp_path / "a").write_text("\n".join(texts[:3]), encoding="utf-8")  # without a last end
    out = tmp_path / "out"
    options = ["--num-beams", 3, "--max-new-tokens", 6, "-b", 2, "--batch-tokens", 20]
    options += ["--jsonl", "--precision", "fp32", "--device", "cpu", "-o", out]
    rest = "\n".join(texts[3:]).encode()
    done = compress("translate", translator, tmp_path / "a", "-", *options, stdin=rest)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    want = Translator(translator, threads=1).translate(texts, num_beams=3, max_new_tokens=6)
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == [
        {"line": number, "translation": text} for number, text in enumerate(want, 1)
    ]
    before = out.read_bytes()
    again = compress("translate", translator, "-o", out, stdin=b"w5\n")
    assert again.returncode == 4
    assert f"{out} exists" in again.stderr.decode()
    assert out.read_bytes() == before
    made = tmp_path / "some" / "where" / "out"
    assert compress("translate", translator, "-o", made, stdin=b"w5\n").returncode == 0
    assert made.read_bytes().count(b"\n") == 1
    below = compress("translate", translator, "-o", out / "below" / "x", stdin=b"w5\n")
    assert below.returncode == 4
    assert f"{out} is a file" in below.stderr.decode()


def test_answers_come_while_the_input_is_still_open(translator: Path) -> None:
    texts = toy.sentences(4, seed=3)
    want = Translator(translator, threads=1).translate(texts)
    with subprocess.Popen(
        command("translate", translator, "--chunk-lines", "2"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        got = []
        for start in (0, 2):
            process.stdin.write("".join(f"{t}\n" for t in texts[start : start + 2]).encode())
            process.stdin.flush()
            got += [process.stdout.readline().decode().rstrip("\n") for _ in range(2)]
        assert got == want
        process.stdin.close()
        assert process.wait(60) == 0


def test_cut_lines_are_told_once_at_the_end(translator: Path) -> None:
    long = " ".join(["w7"] * 60)
    stdin = "\n".join([long, "w5", long, "", "w6", long]).encode()
    most = Translator(translator, threads=1).artifact.max_source_tokens
    done = compress("translate", translator, "--chunk-lines", "2", stdin=stdin)
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == 6
    assert done.stderr.decode() == (
        f"warning: 3 of 6 texts were cut to the {most} tokens that the model can read; "
        "split them into sentences\n"
    )
    assert compress("translate", translator, "-q", stdin=stdin).stderr == b""


def test_text_that_is_not_utf8_is_an_error_with_its_line(translator: Path, tmp_path: Path) -> None:
    done = compress(
        "translate", translator, "--chunk-lines", "1", stdin=b"w5\nw6\nw7 \xff w8\nw9\n"
    )
    assert done.returncode == 4
    assert done.stdout.count(b"\n") == 2
    assert b"error: standard input:3: byte 0xff is not UTF-8" in done.stderr
    out = tmp_path / "out"
    done = compress(
        "translate", translator, "--chunk-lines", "1", "-o", out, stdin=b"w5\nw7 \xff w8\n"
    )
    assert done.returncode == 4
    assert not out.exists()


def test_a_reader_that_goes_away_is_no_error(translator: Path) -> None:
    # More than a pipe holds, so that writing must meet the closed end.
    stdin = ("\n".join(toy.sentences(40, seed=4)) + "\n" + "\n" * 200_000).encode()
    writer = subprocess.Popen(
        command("translate", translator),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    head = subprocess.Popen(["head", "-1"], stdin=writer.stdout, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.close()  # head alone reads it
    assert writer.stdin is not None
    try:
        writer.stdin.write(stdin)
        writer.stdin.close()
    except BrokenPipeError:
        pass  # it ended before it had read everything, as it should
    writer.stdin = None
    first, _ = head.communicate(timeout=60)
    _, errors = writer.communicate(timeout=60)
    assert (writer.returncode, errors) == (0, b"")
    want = Translator(translator, threads=1).translate(toy.sentences(40, seed=4))
    assert first.decode().rstrip("\n") == want[0]


def test_ctrl_c(translator: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        command("translate", translator, "-o", out),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"w5\n")
        process.stdin.flush()
        _wait_for(tmp_path, ".writing-*/*/out")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in errors
    assert not out.exists()


def test_ctrl_c_just_as_the_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Path.open

    def interrupted(path: Path, mode: str) -> IO[Any]:
        file = made(path, mode)
        signal.raise_signal(signal.SIGINT)
        return file

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", interrupted)
        with pytest.raises(KeyboardInterrupt), line_writer(out):
            pytest.fail("the interrupt was lost")
    assert not out.exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _wait_for(directory: Path, pattern: str) -> None:
    deadline = time.monotonic() + 60
    while not list(directory.glob(pattern)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(directory.glob(pattern))


def test_lines_are_classified(classifier: Path) -> None:
    texts = [*toy.sentences(6, seed=5), "", "w5"]
    model = Classifier(classifier, threads=1)
    done = compress("classify", classifier, stdin="\n".join(texts).encode())
    assert (done.returncode, done.stderr) == (0, b"")
    want = model.classify(texts)
    want[6] = ""
    assert done.stdout.decode().splitlines() == want
    assert len(set(want)) > 2


def test_probabilities_of_pairs(classifier: Path) -> None:
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
        order = row.argsort()[::-1]
        assert [first, second] == [model.labels[place] for place in order[:2]]
        assert [float(one), float(two)] == pytest.approx(row[order[:2]].tolist(), abs=2e-6)

    done = compress("classify", classifier, "--pairs", "--probabilities", "--jsonl", stdin=stdin)
    rows = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert rows.pop(2) == {"line": 3, "label": None, "probabilities": {}}
    for row, found in zip(rows, want, strict=True):
        assert list(row["probabilities"]) == model.labels
        assert list(row["probabilities"].values()) == pytest.approx(found.tolist(), abs=2e-6)
        assert row["label"] == model.labels[found.argmax()]


@pytest.mark.parametrize(
    ("arguments", "error", "problem"),
    [
        (["translate", "BERT"], InputError, "artifact-of-another-task"),
        (["classify", "MARIAN"], InputError, "artifact-of-another-task"),
        (["translate", "MARIAN", "nothing.txt"], InputError, "file-missing"),
        (["translate", "MARIAN", "--precision", "fp8"], UsageError, "precision-not-in-artifact"),
        (["predict", "BERT", "--query", "w5"], UsageError, "option-without-use"),
        (["predict", "MARIAN", "--pairs"], UsageError, "option-without-use"),
        (["predict", "MARIAN", "-o", "a.npy"], UsageError, "output-not-array"),
        (["classify", "BERT", "--pairs"], InputError, "cell-count-differs"),
        (["classify", "BERT", "--top-k", "99"], UsageError, "top-k-too-large"),
        (
            ["classify", "BERT", "--top-k", "1", "--probabilities"],
            UsageError,
            "options-exclude-each-other",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_asked_for(
    arguments: list[str],
    error: type[CompressError],
    problem: str,
    classifier: Path,
    translator: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"w5\n")))
    directories = {"BERT": str(classifier), "MARIAN": str(translator)}
    with raises(error, problem) as caught:
        invoke(*(directories.get(word, word) for word in arguments))
    if problem == "cell-count-differs":
        assert "standard input:1" in str(caught.value)


def test_streams_have_no_json_object(translator: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["translate", str(translator), "--json"]) == 2
    assert "--json" in capsys.readouterr().err


def read(tmp_path: Path, data: bytes) -> list[str]:
    (tmp_path / "in.txt").write_bytes(data)
    return list(Lines([tmp_path / "in.txt"]))


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\nb\r\n\r\nc", ["a", "", "b", "", "c"]),
        ("a\u2028b\u0085c\x0bd\re\x1cf\n".encode(), ["a\u2028b\u0085c\x0bd\re\x1cf"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"a\r\r\n", ["a\r"]),
        (b"a\0b\n", ["a\0b"]),
    ],
)
def test_what_a_line_is(data: bytes, lines: list[str], tmp_path: Path) -> None:
    assert read(tmp_path, data) == lines


def test_files_follow_one_another_and_lines_know_their_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2")
    (tmp_path / "b").write_bytes(b"3\n\xe4\n")
    lines = Lines([tmp_path / "a", tmp_path / "b"])
    reader = iter(lines)
    got = [(next(reader), lines.place) for _ in range(3)]
    with raises(InputError, "file-not-utf8") as caught:
        next(reader)
    assert "b:2: byte 0xe4" in str(caught.value)
    places = [tmp_path / "a", tmp_path / "a", tmp_path / "b"]
    assert got == [
        (text, f"{file}:{number}")
        for text, file, number in zip("123", places, (1, 2, 1), strict=True)
    ]
    with raises(InputError, "file-is-directory"):
        Lines([tmp_path])
    assert not Lines([tmp_path / "a"]).interactive


def test_a_line_stays_one_line(tmp_path: Path) -> None:
    with line_writer(tmp_path / "out") as writer:
        writer.write("a\nb\r\nc\u2028d")
        writer.write("")
    assert (tmp_path / "out").read_bytes() == "a b  c\u2028d\n\n".encode()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(translator: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command("translate", translator),
            input=b"w5\n",
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
    assert done.returncode == 4
    assert b"standard output: No space left on device" in done.stderr


def test_progress_counts_what_is_written(tmp_path: Path) -> None:
    class Listening(Silent):
        heard: list[tuple[int, int | None]] = []  # noqa: RUF012

        def update(self, what: str, done: int, total: int | None) -> None:
            (file,) = [*tmp_path.glob(".writing-*/*/out"), *tmp_path.glob("out")]
            written = file.read_bytes().count(b"\n")
            self.heard.append((done, total))
            assert written == done

    (tmp_path / "in").write_text("a\n" * 5)
    lines = Lines([tmp_path / "in"])
    serve(
        lines, lambda texts, _: iter(texts), lambda n, text: f"{n}{text}",
        tmp_path / "out", 2, Listening(),
    )  # fmt: skip
    assert Listening.heard == [(2, None), (4, None), (5, 5)]
    assert (tmp_path / "out").read_text() == "1a\n2a\n3a\n4a\n5a\n"
