"""The cases of the fuzzer: `fuzz_process.py` runs them, `fuzz.py` says what they promise.

A kind of case is a function that changes something in a directory of its own and says which
command is to see it. Files are links to the intact ones, but for the one that is changed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer
import yaml

from compressor.commands import COMMANDS, application
from compressor.storage.files import sha256_of
from compressor.storage.manifest import update_manifest
from tests.attacks.fuzz_changes import (
    WORDS,
    change_bytes,
    change_json,
    change_rows,
    contents,
    dump,
)
from tests.attacks.fuzz_material import ARTIFACTS

MEMORY_BYTES = 1 << 30  # resident, beyond what a process has after its imports
Words = list[str]


@dataclass
class Case:
    """What a kind of case makes."""

    words: Words  # of the command line, or `load DIR`, which is `compressor.load`
    told: str  # what was changed
    # Words for the same on intact files: what it answers must be the same, if it answers.
    intact: Words | None = None
    refused: bool = False  # status 0 is wrong whatever it says
    answer: Path | None = None  # a file or directory that the command writes


def link(source: Path, directory: Path) -> Path:
    """A directory with links to the files of another."""
    return Path(shutil.copytree(source, directory, copy_function=os.link))


def put(path: Path, data: bytes) -> None:
    """Replace a link by a file of its own."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _command(rng: random.Random, model: str, name: str, directory: Path, texts: Path) -> Words:
    """A command that reads a file of an artifact; sometimes one that does not."""
    runs = [ARTIFACTS[model], str(directory), str(texts), *_told_more(rng, model)]
    gate = ["gate", str(directory / "report.json"), "--max-drop", "accuracy=100"]
    gate[-1] = gate[-1] if model == "bert" else "bleu=100"
    rows = directory.parent / "rows.tsv"
    evaluate = ["evaluate", str(directory), "--test", str(rows), "--json", "--device", "cpu"]
    inspect = ["inspect", str(directory), "--json"]
    verify = ["verify", str(directory)]
    load = ["load", str(directory)]
    everything = [runs, gate, evaluate, inspect, verify, load]
    if rng.random() < 0.2:
        return rng.choice(everything)
    if name.startswith("onnx/"):
        return rng.choice([runs, runs, runs, verify, evaluate])
    if name == "report.json":
        return rng.choice([gate, gate, verify])
    if name == "manifest.json":
        return rng.choice(everything)
    return rng.choice([inspect, load, verify])


def _told_more(rng: random.Random, model: str) -> Words:
    own = ["--probabilities"] if model == "bert" else ["--num-beams", "2"]
    return [*rng.choice([["--jsonl"], [], own]), "-q", "--device", "cpu"]


def artifact(rng: random.Random, material: Path, scratch: Path) -> Case:
    """A file of an artifact that its manifest lists, or the manifest."""
    model = rng.choice([name for name in ARTIFACTS if (material / f"{name}-run").exists()])
    source = material / f"{model}-run"
    paths = [path for path in files_of(source) if ".compress" not in path.parts]
    path = rng.choice(paths)
    name = path.relative_to(source).as_posix()
    directory = scratch / "a"
    shutil.copytree(
        source, directory, copy_function=os.link, ignore=shutil.ignore_patterns(".compress")
    )
    data = path.read_bytes()
    reseal = False
    if path.suffix == ".json" and rng.random() < 0.6:
        told, changed = change_json(rng, json.loads(data))
        new = dump(changed)
        reseal = name != "manifest.json" and rng.random() < 0.6
    else:
        told, new = change_bytes(rng, data, contents(paths))
        reseal = name != "manifest.json" and rng.random() < 0.3
    if rng.random() < 0.02:
        told, new = "removed", data
        (directory / name).unlink()
    else:
        put(directory / name, new)
        if reseal:
            update_manifest(directory, {name: sha256_of(directory / name)})
    rows = next((material / f"{model}-rows").glob("test.tsv"))
    os.link(rows, scratch / "rows.tsv")
    words = _command(rng, model, name, directory, material / "texts.txt")
    refused = not reseal and words[0] == "verify" and name != "manifest.json"
    refused = refused and (told == "removed" or new != data)
    intact = [word.replace(str(directory), str(source)) for word in words]
    if words[0] in ("evaluate",):
        intact = [word.replace(str(scratch / "rows.tsv"), str(rows)) for word in intact]
    told = f"{name}: {told}{', resealed' if reseal else ''}"
    return Case(words, told, None if reseal else intact, refused)


def checkpoint(rng: random.Random, material: Path, scratch: Path) -> Case:
    """A file of a checkpoint that no manifest lists."""
    source = material / rng.choice(list(ARTIFACTS))
    directory = link(source, scratch / "c")
    paths = files_of(source)
    path = rng.choice(paths)
    data = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.75:
        told, changed = change_json(rng, json.loads(data))
        new = dump(changed)
    elif path.suffix == ".safetensors" and rng.random() < 0.4:
        length = int.from_bytes(data[:8], "little")
        told, changed = change_json(rng, json.loads(data[8 : 8 + length]))
        header = dump(changed)
        new = len(header).to_bytes(8, "little") + header + data[8 + length :]
    else:
        told, new = change_bytes(rng, data, contents(paths))
    put(directory / path.name, new)
    score = ["score", "-m", str(directory), "--method", "magnitude", "--device", "cpu"]
    words = rng.choice(
        [["inspect", str(directory), "--json"], ["load", str(directory)],
         [*score, "-q", "-o", str(scratch / "s.json")]]
    )  # fmt: skip
    return Case(words, f"{source.name}/{path.name}: {told}")


def records(rng: random.Random, material: Path, scratch: Path) -> Case:
    """A record of a run, or something that it made, and the same run again."""
    source = material / "bert-run"
    directory = Path(shutil.copytree(source, scratch / "out"))
    paths = [path for path in files_of(source) if rng.random() < 0.3 or ".compress" in path.parts]
    path = rng.choice(paths)
    name = path.relative_to(source)
    if path.suffix == ".json" and rng.random() < 0.6:
        told, changed = change_json(rng, json.loads(path.read_bytes()))
        (directory / name).write_bytes(dump(changed))
    else:
        told, new = change_bytes(rng, path.read_bytes(), contents(paths))
        (directory / name).write_bytes(new)
    words = ["run", "-c", str(material / "recipe.yaml"), "-q", "-o"]
    return Case(
        [*words, str(directory)], f"{name}: {told}", [*words, str(scratch / "out")],
        answer=directory,
    )  # fmt: skip


def scores(rng: random.Random, material: Path, scratch: Path) -> Case:
    """A file of scores."""
    data = (material / "scores.json").read_bytes()
    if rng.random() < 0.8:
        told, changed = change_json(rng, json.loads(data))
        new = dump(changed)
    else:
        told, new = change_bytes(rng, data, [])
    (scratch / "s.json").write_bytes(new)
    words = ["prune", "-m", str(material / "bert"), "--scores", str(scratch / "s.json")]
    more = rng.choice(["heads=0.5", "neurons=0.5", "0.25"])
    return Case([*words, "--keep", more, "--device", "cpu", "-o", str(scratch / "out")], told)


def reports(rng: random.Random, material: Path, scratch: Path) -> Case:
    """A report, judged and rendered."""
    source = rng.choice(files_of(material / "reports"))
    if rng.random() < 0.85:
        told, changed = change_json(rng, json.loads(source.read_bytes()))
        new = dump(changed)
    else:
        told, new = change_bytes(rng, source.read_bytes(), [])
    path = scratch / "r.json"
    path.write_bytes(new)
    rule = "accuracy=1" if source.stem == "bert" else "bleu=1"
    gate = ["gate", str(path), "--max-drop", rule, *rng.choice([[], ["--json"]])]
    gate += rng.choice([[], ["--junit", str(scratch / "junit.xml")]])
    words = rng.choice([gate, ["report", str(path), "-o", str(scratch / "out")]])
    return Case(words, f"{source.name}: {told}")


def recipes(rng: random.Random, material: Path, scratch: Path) -> Case:
    """A recipe of a model that is not there: nothing may start."""
    values = yaml.safe_load((material / "recipe.yaml").read_bytes())
    values["model"]["path"] = str(scratch / "missing")
    if rng.random() < 0.7:
        told, changed = change_json(rng, values)
        if isinstance(changed, dict) and isinstance(changed.get("model"), dict):
            changed["model"]["path"] = str(scratch / "missing")
        try:
            text = yaml.safe_dump(changed).encode()
        except (yaml.YAMLError, ValueError, RecursionError):  # most of JSON is YAML too
            text = dump(changed)
    else:
        told, text = change_bytes(rng, yaml.safe_dump(values).encode(), [])
    (scratch / "r.yaml").write_bytes(text)
    words = ["run", "-c", str(scratch / "r.yaml"), "-m", str(scratch / "missing")]
    return Case([*words, "-o", str(scratch / "out")], told, refused=True)


def rows(rng: random.Random, material: Path, scratch: Path) -> Case:
    """Rows with labels, read by three formats' readers."""
    intact = (material / "bert-rows" / "test.tsv").read_text("utf-8")
    ending = rng.choice(("tsv", "csv", "jsonl"))
    told, data = change_rows(rng, [line.split("\t") for line in intact.splitlines()], ending)
    path = scratch / f"rows.{ending}"
    path.write_bytes(data)
    evaluate = ["evaluate", str(material / "bert-run"), "--test", str(path), "--device", "cpu"]
    evaluate += rng.choice([[], ["--no-header"], ["--text-column", "text"]])
    evaluate += ["--resamples", "100"]
    score = ["score", "-m", str(material / "bert"), "--method", "taylor", "--calibration"]
    score += [str(path), "--device", "cpu", "-o", str(scratch / "s.json")]
    return Case(rng.choice([evaluate, evaluate, score]), f"{ending}: {told}")


def texts(rng: random.Random, material: Path, scratch: Path) -> Case:
    """Lines that are no texts, to classify or to translate."""
    model = rng.choice([name for name in ARTIFACTS if (material / f"{name}-run").exists()])
    told, data = change_bytes(rng, (material / "texts.txt").read_bytes(), [])
    path = scratch / "t.txt"
    path.write_bytes(data)
    words = [ARTIFACTS[model], str(material / f"{model}-run"), str(path)]
    words += rng.choice([[], ["--pairs"]]) if model == "bert" else []
    return Case([*words, *_told_more(rng, model)], told)


def options(rng: random.Random, material: Path, scratch: Path) -> Case:
    """Values of options that nobody means, for every command but `demo` and `doctor`."""
    name = rng.choice([name for name in COMMANDS if name not in ("demo", "doctor")])
    command = typer.main.get_command(application([name]))
    named = command.commands[name] if hasattr(command, "commands") else command
    flags = [x for x in named.params if x.param_type_name == "option" and x.name != "help"]
    words: Words = []
    for option in rng.sample(flags, min(len(flags), rng.choice((1, 1, 2, 3)))):
        spelled = rng.choice([*option.opts, *option.secondary_opts])
        if not (spelled.startswith("--") or len(spelled) == 2):
            continue
        words.append(spelled)
        if not option.is_flag or rng.random() < 0.05:
            near = str(rng.choice((rng.randrange(-5, 70), 10 ** rng.randrange(12), rng.random())))
            words.append(rng.choice([*WORDS, near, near, near]))
    made, missing, out = str(material / "bert-run"), str(scratch / "missing"), str(scratch / "out")
    usual: dict[str, Words] = {
        "run": ["-m", missing, "--test", missing, "--keep", "0.5", "-o", out],
        "study": ["heads", "-m", missing, "--test", missing, "-o", out],
        "export": ["-m", missing, "-o", out],
        "bench": [missing, missing, "--test", missing, "-o", out],
        "score": ["-m", str(material / "bert"), "--method", "magnitude", "-o", f"{out}.json"],
        "prune": ["-m", str(material / "bert"), "--scores", str(material / "scores.json"),
                  "--keep", "0.5", "-o", out],
        "inspect": [str(material / "bert")],
        "cache-key": ["-m", str(material / "bert"), "--keep", "0.5"],
        "evaluate": [made, "--test", str(material / "bert-rows" / "test.tsv")],
        "report": [str(material / "reports" / "bert.json"), "-o", out],
        "gate": [str(material / "reports" / "bert.json"), "--max-drop", "accuracy=5"],
        "verify": [made],
        "classify": [made, str(material / "texts.txt")],
        "translate": [str(material / "marian-run"), str(material / "texts.txt")],
    }  # fmt: skip
    given = usual[name] + words if rng.random() < 0.5 else words + usual[name]
    return Case([name, *given], f"{len(words)} words")


KINDS: dict[str, tuple[float, Callable[[random.Random, Path, Path], Case]]] = {
    "artifact": (30, artifact),
    "checkpoint": (20, checkpoint),
    "records": (0.5, records),
    "scores": (6, scores),
    "reports": (9, reports),
    "recipes": (10, recipes),
    "rows": (9, rows),
    "texts": (3, texts),
    "options": (10, options),
}


def bug(rng: random.Random, material: Path, scratch: Path) -> Case:
    """Ends with status 70: no command is given a number for a word."""
    return Case(["gate", 5], "")  # type: ignore[list-item]


def lie(rng: random.Random, material: Path, scratch: Path) -> Case:
    """Answers for one directory what is wrong for another."""
    words = ["inspect", str(material / "bert"), "--json"]
    return Case(words, "", ["inspect", str(material / "marian"), "--json"])


def end(rng: random.Random, material: Path, scratch: Path) -> Case:
    """Ends the process."""
    os._exit(7)


def hang(rng: random.Random, material: Path, scratch: Path) -> Case:
    """Does not end."""
    time.sleep(3600)
    raise AssertionError


def take(rng: random.Random, material: Path, scratch: Path) -> Case:
    """Takes more memory than cases may."""
    taken = b"x" * (MEMORY_BYTES + (1 << 27))  # zeros would take no pages
    assert taken
    return Case(["gate"], "")


# Cases that fail, to see that it is noticed.
FAILING = {"bug": (1, bug), "lie": (1, lie), "end": (1, end), "hang": (1, hang), "take": (1, take)}
