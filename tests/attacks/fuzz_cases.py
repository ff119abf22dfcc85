"""The cases of the fuzzer: a kind changes something and says what is to see it.

`fuzz_process.py` runs them, `fuzz.py` says what they promise.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

import typer
import yaml

from compressor.commands import COMMANDS, application
from tests.attacks.fuzz_changes import (
    chance,
    changed_bytes,
    changed_json,
    changed_rows,
    dump,
    option_value,
)

Words = list[str]
ARTIFACTS = {"bert": "classify", "marian": "translate"}  # directory -> what runs it
SCRATCH = Path("/directory-of-the-case")  # in words; replaced when they are run
MEMORY_BYTES = 1 << 30  # resident, beyond what a process has after its imports
CPU = ["--device", "cpu"]


@dataclass(frozen=True)
class Case:
    """What is changed, and which command sees it."""

    words: Words  # of the command line, or `load DIR`, which is `compressor.load`
    change: str  # what was changed
    linked: tuple[str, Path] | None = None  # a directory with links to the files of another
    # Written over them; None: removed.
    files: dict[str, bytes | None] = field(default_factory=dict, repr=False)
    # Words for the same on intact files: what it answers must be the same, if it answers.
    intact: Words | None = None
    refused: bool = False  # status 0 is wrong whatever it says
    answer: str = ""  # a directory that the command writes

    def lay_out(self, scratch: Path) -> None:
        """Write the files."""
        if self.linked is not None:
            name, source = self.linked
            # A command that goes on with a run writes there: it must not see the intact files.
            copy = shutil.copy2 if self.answer else os.link
            ignored = None if self.answer else shutil.ignore_patterns(".compress")
            shutil.copytree(source, scratch / name, copy_function=copy, ignore=ignored)
        for name, data in self.files.items():
            (scratch / name).unlink(missing_ok=True)  # a link must not change what it leads to
            if data is not None:
                (scratch / name).write_bytes(data)


@cache
def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@cache
def contents(paths: tuple[Path, ...]) -> list[bytes]:
    return [path.read_bytes() for path in paths]


def _changed_file(
    rng: Random, path: Path, others: Sequence[Path] = (), json_percent: int = 60
) -> tuple[str, bytes]:
    """Another JSON value in a file of JSON, or other bytes."""
    data = path.read_bytes()
    if path.suffix == ".json" and chance(rng, json_percent):
        change, value = changed_json(rng, json.loads(data))
        return change, dump(value)
    return changed_bytes(rng, data, contents(tuple(others)))


def _streams(rng: Random, model: str) -> Words:
    own = ["--probabilities"] if model == "bert" else ["--num-beams", "2"]
    return [*rng.choice(([], ["--jsonl"], own)), "-q", *CPU]


def _reader(rng: Random, model: str, name: str, directory: str, material: Path) -> Words:
    """A command that reads a file of an artifact; sometimes one that does not."""
    texts, rows = str(material / "texts.txt"), str(material / f"{model}-rows" / "test.tsv")
    runs = [ARTIFACTS[model], directory, texts, *_streams(rng, model)]
    rule = "accuracy=100" if model == "bert" else "bleu=100"
    gate = ["gate", f"{directory}/report.json", "--max-metric-drop", rule]
    evaluate = ["evaluate", directory, "--test", rows, "--json", *CPU]
    inspect, verify = ["inspect", directory, "--json"], ["verify", directory]
    load = ["load", directory]
    everything = [runs, gate, evaluate, inspect, verify, load]
    if name == "manifest.json" or chance(rng, 20):
        return rng.choice(everything)
    if name.startswith("onnx/"):
        return rng.choice([runs, runs, runs, verify, evaluate])
    if name == "report.json":
        return rng.choice([gate, gate, verify])
    return rng.choice([inspect, load, verify])


def artifact(rng: Random, material: Path) -> Case:
    """A file of an artifact that its manifest lists, or the manifest."""
    model = rng.choice(list(ARTIFACTS))
    source = material / f"{model}-run"
    paths = [path for path in files_of(source) if ".compress" not in path.parts]
    path = rng.choice(paths)
    name = path.relative_to(source).as_posix()
    change, data = _changed_file(rng, path, paths)
    removed = chance(rng, 2)
    words = _reader(rng, model, name, str(SCRATCH / "a"), material)
    return Case(
        words,
        f"{name}: {'removed' if removed else change}",
        linked=("a", source),
        files={f"a/{name}": None if removed else data},
        intact=[x.replace(str(SCRATCH / "a"), str(source)) for x in words],
        refused=words[0] == "verify" and name != "manifest.json"
        and (removed or data != path.read_bytes()),
    )  # fmt: skip


def checkpoint(rng: Random, material: Path) -> Case:
    """A file of a checkpoint that no manifest lists."""
    source = material / rng.choice(list(ARTIFACTS))
    path = rng.choice(files_of(source))
    if path.suffix == ".safetensors" and chance(rng, 40):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        change, value = changed_json(rng, json.loads(data[8 : 8 + length]))
        header = dump(value)
        new = len(header).to_bytes(8, "little") + header + data[8 + length :]
    else:
        change, new = _changed_file(rng, path, files_of(source), json_percent=75)
    directory = str(SCRATCH / "c")
    score = ["score", "-m", directory, "--method", "magnitude", "-q", *CPU]
    score += ["-o", str(SCRATCH / "s.json")]
    words = rng.choice([["inspect", directory, "--json"], ["load", directory], score])
    files = {f"c/{path.name}": new}
    return Case(words, f"{source.name}/{path.name}: {change}", ("c", source), files)


def records(rng: Random, material: Path) -> Case:
    """A record of a run, or something that it made, and the same run again."""
    source = material / "bert-run"
    own = [path for path in files_of(source) if ".compress" in path.parts]
    path = rng.choice(rng.choice([own, own, files_of(source)]))
    change, data = _changed_file(rng, path, files_of(source))
    name = path.relative_to(source).as_posix()
    words = ["run", "-c", str(material / "recipe.yaml"), "-q", "-o", str(SCRATCH / "out")]
    files = {f"out/{name}": data}
    return Case(words, f"{name}: {change}", ("out", source), files, intact=words, answer="out")


def scores(rng: Random, material: Path) -> Case:
    """A file of scores."""
    change, data = _changed_file(rng, material / "scores.json", json_percent=80)
    keep = rng.choice(["heads=0.5", "neurons=0.5", "0.25"])
    words = ["prune", "-m", str(material / "bert"), "--scores", str(SCRATCH / "s.json")]
    words += ["--keep", keep, *CPU, "-o", str(SCRATCH / "out")]
    return Case(words, change, files={"s.json": data})


def reports(rng: Random, material: Path) -> Case:
    """A report, judged and rendered."""
    source = rng.choice(files_of(material / "reports"))
    change, data = _changed_file(rng, source, json_percent=85)
    path, rule = str(SCRATCH / "r.json"), "accuracy=1" if source.stem == "bert" else "bleu=1"
    gate = ["gate", path, "--max-metric-drop", rule, *rng.choice(([], ["--json"]))]
    gate += rng.choice(([], ["--junit", str(SCRATCH / "junit.xml")]))
    words = rng.choice([gate, ["report", path, "-o", str(SCRATCH / "out")]])
    return Case(words, f"{source.name}: {change}", files={"r.json": data})


def recipes(rng: Random, material: Path) -> Case:
    """A recipe of a model that is not there: nothing may start."""
    missing = str(SCRATCH / "missing")
    values = yaml.safe_load((material / "recipe.yaml").read_bytes())
    values["model"] = missing
    if chance(rng, 70):
        change, value = changed_json(rng, values)
        if isinstance(value, dict) and "model" in value:
            value["model"] = missing
        try:
            data = yaml.safe_dump(value).encode()
        except (yaml.YAMLError, ValueError, RecursionError):  # most of JSON is YAML too
            data = dump(value)
    else:
        change, data = changed_bytes(rng, yaml.safe_dump(values).encode())
    words = ["run", "-c", str(SCRATCH / "r.yaml"), "-m", missing, "-o", str(SCRATCH / "out")]
    return Case(words, change, files={"r.yaml": data}, refused=True)


def rows(rng: Random, material: Path) -> Case:
    """Rows with labels, read by three formats' readers."""
    intact = (material / "bert-rows" / "test.tsv").read_text("utf-8").splitlines()
    ending = rng.choice(("tsv", "csv", "jsonl"))
    change, data = changed_rows(rng, [line.split("\t") for line in intact], ending)
    path = str(SCRATCH / f"rows.{ending}")
    evaluate = ["evaluate", str(material / "bert-run"), "--test", path, *CPU]
    evaluate += ["--resamples", "100"]
    evaluate += rng.choice(([], ["--no-header"], ["--text-column", "text"]))
    score = ["score", "-m", str(material / "bert"), "--method", "taylor", "--calibration", path]
    score += [*CPU, "-o", str(SCRATCH / "s.json")]
    words = rng.choice([evaluate, evaluate, score])
    return Case(words, f"{ending}: {change}", files={f"rows.{ending}": data})


def texts(rng: Random, material: Path) -> Case:
    """Lines that are no texts, to classify or to translate."""
    model = rng.choice(list(ARTIFACTS))
    change, data = changed_bytes(rng, (material / "texts.txt").read_bytes())
    words = [ARTIFACTS[model], str(material / f"{model}-run"), str(SCRATCH / "t.txt")]
    words += rng.choice(([], ["--pairs"])) if model == "bert" else []
    return Case([*words, *_streams(rng, model)], change, files={"t.txt": data})


@cache
def _options(command: str) -> list[tuple[tuple[str, ...], bool]]:
    """The spellings of each option, and whether it is a flag without a value."""
    made = typer.main.get_command(application([command]))
    named = made.commands[command] if hasattr(made, "commands") else made
    found = []
    for option in named.params:
        spelled = [x for x in (*option.opts, *option.secondary_opts) if x.startswith("-")]
        if spelled and option.name != "help":
            found.append((tuple(spelled), option.is_flag))
    return sorted(found)


def options(rng: Random, material: Path) -> Case:
    """Values of options that nobody means, for every command but `demo` and `doctor`."""
    name = rng.choice(sorted(set(COMMANDS) - {"demo", "doctor"}))
    words: Words = []
    known = _options(name)
    for spelled, is_flag in rng.sample(known, min(len(known), rng.choice((1, 1, 2, 3)))):
        words.append(rng.choice(spelled))
        if not is_flag or chance(rng, 5):
            words.append(option_value(rng))
    made, missing, out = str(material / "bert-run"), str(SCRATCH / "missing"), str(SCRATCH / "out")
    bert, report = str(material / "bert"), str(material / "reports" / "bert.json")
    usual: dict[str, Words] = {
        "run": ["-m", missing, "--test", missing, "--keep", "0.5", "-o", out],
        "study": ["heads", "-m", missing, "--test", missing, "-o", out],
        "export": ["-m", missing, "-o", out],
        "bench": [missing, missing, "--test", missing, "-o", out],
        "score": ["-m", bert, "--method", "magnitude", "-o", f"{out}.json"],
        "prune": ["-m", bert, "--scores", str(material / "scores.json"), "--keep", "0.5",
                  "-o", out],
        "inspect": [bert],
        "evaluate": [made, "--test", str(material / "bert-rows" / "test.tsv")],
        "report": [report, "-o", out],
        "gate": [report, "--max-metric-drop", "accuracy=5"],
        "verify": [made],
        "classify": [made, str(material / "texts.txt")],
        "predict": [made, str(material / "texts.txt"), "--query", "w3", "--top-k", "2"],
        "translate": [str(material / "marian-run"), str(material / "texts.txt")],
    }  # fmt: skip
    given = usual[name] + words if chance(rng, 50) else words + usual[name]
    return Case([name, *given], f"{len(words)} words")


# Kind -> its share of the cases, and what draws one.
KINDS: dict[str, tuple[float, Callable[[Random, Path], Case]]] = {
    "artifact": (30, artifact), "checkpoint": (20, checkpoint), "records": (0.5, records),
    "scores": (6, scores), "reports": (9, reports), "recipes": (10, recipes), "rows": (9, rows),
    "texts": (3, texts), "options": (10, options),
}  # fmt: skip
