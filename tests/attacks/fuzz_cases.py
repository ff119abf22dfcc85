"""The cases of the fuzzer, as strategies: a kind changes something and says what is to see it.

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
from typing import Any

import typer
import yaml
from hypothesis import strategies as st

from compressor.commands import COMMANDS, application
from tests.attacks.fuzz_changes import (
    Draw,
    chance,
    changed_bytes,
    changed_json,
    changed_rows,
    dump,
    one,
    option_values,
)

Words = list[str]
ARTIFACTS = {"bert": "classify", "marian": "translate"}  # directory -> what runs it
SCRATCH = Path("/directory-of-the-case")  # in words; replaced when the case is laid out
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

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis shows; it would write out the files."""
        printer.text(repr(self))

    def lay_out(self, scratch: Path) -> dict[str, Any]:
        """Write the files, and describe the case to the process that runs it."""
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

        def placed(words: Sequence[str]) -> Words:
            return [word.replace(str(SCRATCH), str(scratch)) for word in words]

        return {
            "words": placed(self.words), "scratch": str(scratch), "refused": self.refused,
            "intact": placed(self.intact or []), "key": " ".join(self.intact or []),
            "answer": self.answer,
        }  # fmt: skip


@cache
def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@cache
def contents(paths: tuple[Path, ...]) -> list[bytes]:
    return [path.read_bytes() for path in paths]


def _changed_file(
    draw: Draw, path: Path, others: Sequence[Path] = (), json_percent: int = 60
) -> tuple[str, bytes]:
    """Another JSON value in a file of JSON, or other bytes."""
    data = path.read_bytes()
    if path.suffix == ".json" and chance(draw, json_percent):
        change, value = draw(changed_json(json.loads(data)))
        return change, dump(value)
    return draw(changed_bytes(data, contents(tuple(others))))


def _streams(draw: Draw, model: str) -> Words:
    own = ["--probabilities"] if model == "bert" else ["--num-beams", "2"]
    return [*one(draw, ([], ["--jsonl"], own)), "-q", *CPU]


def _reader(draw: Draw, model: str, name: str, directory: str, material: Path) -> Words:
    """A command that reads a file of an artifact; sometimes one that does not."""
    texts, rows = str(material / "texts.txt"), str(material / f"{model}-rows" / "test.tsv")
    runs = [ARTIFACTS[model], directory, texts, *_streams(draw, model)]
    rule = "accuracy=100" if model == "bert" else "bleu=100"
    gate = ["gate", f"{directory}/report.json", "--max-metric-drop", rule]
    evaluate = ["evaluate", directory, "--test", rows, "--json", *CPU]
    inspect, verify = ["inspect", directory, "--json"], ["verify", directory]
    load = ["load", directory]
    everything = [runs, gate, evaluate, inspect, verify, load]
    if name == "manifest.json" or chance(draw, 20):
        return one(draw, everything)
    if name.startswith("onnx/"):
        return one(draw, [runs, runs, runs, verify, evaluate])
    if name == "report.json":
        return one(draw, [gate, gate, verify])
    return one(draw, [inspect, load, verify])


@st.composite
def artifact(draw: Draw, material: Path) -> Case:
    """A file of an artifact that its manifest lists, or the manifest."""
    model = one(draw, list(ARTIFACTS))
    source = material / f"{model}-run"
    paths = [path for path in files_of(source) if ".compress" not in path.parts]
    path = one(draw, paths)
    name = path.relative_to(source).as_posix()
    change, data = _changed_file(draw, path, paths)
    removed = chance(draw, 2)
    words = _reader(draw, model, name, str(SCRATCH / "a"), material)
    return Case(
        words,
        f"{name}: {'removed' if removed else change}",
        linked=("a", source),
        files={f"a/{name}": None if removed else data},
        intact=[x.replace(str(SCRATCH / "a"), str(source)) for x in words],
        refused=words[0] == "verify" and name != "manifest.json"
        and (removed or data != path.read_bytes()),
    )  # fmt: skip


@st.composite
def checkpoint(draw: Draw, material: Path) -> Case:
    """A file of a checkpoint that no manifest lists."""
    source = material / one(draw, list(ARTIFACTS))
    path = one(draw, files_of(source))
    if path.suffix == ".safetensors" and chance(draw, 40):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        change, value = draw(changed_json(json.loads(data[8 : 8 + length])))
        header = dump(value)
        new = len(header).to_bytes(8, "little") + header + data[8 + length :]
    else:
        change, new = _changed_file(draw, path, files_of(source), json_percent=75)
    directory = str(SCRATCH / "c")
    score = ["score", "-m", directory, "--method", "magnitude", "-q", *CPU]
    score += ["-o", str(SCRATCH / "s.json")]
    words = one(draw, [["inspect", directory, "--json"], ["load", directory], score])
    files = {f"c/{path.name}": new}
    return Case(words, f"{source.name}/{path.name}: {change}", ("c", source), files)


@st.composite
def records(draw: Draw, material: Path) -> Case:
    """A record of a run, or something that it made, and the same run again."""
    source = material / "bert-run"
    own = [path for path in files_of(source) if ".compress" in path.parts]
    path = one(draw, one(draw, [own, own, files_of(source)]))
    change, data = _changed_file(draw, path, files_of(source))
    name = path.relative_to(source).as_posix()
    words = ["run", "-c", str(material / "recipe.yaml"), "-q", "-o", str(SCRATCH / "out")]
    files = {f"out/{name}": data}
    return Case(words, f"{name}: {change}", ("out", source), files, intact=words, answer="out")


@st.composite
def scores(draw: Draw, material: Path) -> Case:
    """A file of scores."""
    change, data = _changed_file(draw, material / "scores.json", json_percent=80)
    keep = one(draw, ["heads=0.5", "neurons=0.5", "0.25"])
    words = ["prune", "-m", str(material / "bert"), "--scores", str(SCRATCH / "s.json")]
    words += ["--keep", keep, *CPU, "-o", str(SCRATCH / "out")]
    return Case(words, change, files={"s.json": data})


@st.composite
def reports(draw: Draw, material: Path) -> Case:
    """A report, judged and rendered."""
    source = one(draw, files_of(material / "reports"))
    change, data = _changed_file(draw, source, json_percent=85)
    path, rule = str(SCRATCH / "r.json"), "accuracy=1" if source.stem == "bert" else "bleu=1"
    gate = ["gate", path, "--max-metric-drop", rule, *one(draw, ([], ["--json"]))]
    gate += one(draw, ([], ["--junit", str(SCRATCH / "junit.xml")]))
    words = one(draw, [gate, ["report", path, "-o", str(SCRATCH / "out")]])
    return Case(words, f"{source.name}: {change}", files={"r.json": data})


@st.composite
def recipes(draw: Draw, material: Path) -> Case:
    """A recipe of a model that is not there: nothing may start."""
    missing = str(SCRATCH / "missing")
    values = yaml.safe_load((material / "recipe.yaml").read_bytes())
    values["model"] = missing
    if chance(draw, 70):
        change, value = draw(changed_json(values))
        if isinstance(value, dict) and "model" in value:
            value["model"] = missing
        try:
            data = yaml.safe_dump(value).encode()
        except (yaml.YAMLError, ValueError, RecursionError):  # most of JSON is YAML too
            data = dump(value)
    else:
        change, data = draw(changed_bytes(yaml.safe_dump(values).encode()))
    words = ["run", "-c", str(SCRATCH / "r.yaml"), "-m", missing, "-o", str(SCRATCH / "out")]
    return Case(words, change, files={"r.yaml": data}, refused=True)


@st.composite
def rows(draw: Draw, material: Path) -> Case:
    """Rows with labels, read by three formats' readers."""
    intact = (material / "bert-rows" / "test.tsv").read_text("utf-8").splitlines()
    ending = one(draw, ("tsv", "csv", "jsonl"))
    change, data = draw(changed_rows([line.split("\t") for line in intact], ending))
    path = str(SCRATCH / f"rows.{ending}")
    evaluate = ["evaluate", str(material / "bert-run"), "--test", path, *CPU]
    evaluate += [*one(draw, ([], ["--no-header"], ["--text-column", "text"])), "--resamples", "100"]
    score = ["score", "-m", str(material / "bert"), "--method", "taylor", "--calibration", path]
    score += [*CPU, "-o", str(SCRATCH / "s.json")]
    words = one(draw, [evaluate, evaluate, score])
    return Case(words, f"{ending}: {change}", files={f"rows.{ending}": data})


@st.composite
def texts(draw: Draw, material: Path) -> Case:
    """Lines that are no texts, to classify or to translate."""
    model = one(draw, list(ARTIFACTS))
    change, data = draw(changed_bytes((material / "texts.txt").read_bytes()))
    words = [ARTIFACTS[model], str(material / f"{model}-run"), str(SCRATCH / "t.txt")]
    words += one(draw, ([], ["--pairs"])) if model == "bert" else []
    return Case([*words, *_streams(draw, model)], change, files={"t.txt": data})


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


@st.composite
def options(draw: Draw, material: Path) -> Case:
    """Values of options that nobody means, for every command but `demo` and `doctor`."""
    name = one(draw, sorted(set(COMMANDS) - {"demo", "doctor"}))
    words: Words = []
    for spelled, is_flag in draw(st.permutations(_options(name)))[: one(draw, (1, 1, 2, 3))]:
        words.append(one(draw, spelled))
        if not is_flag or chance(draw, 5):
            words.append(draw(option_values))
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
    given = usual[name] + words if chance(draw, 50) else words + usual[name]
    return Case([name, *given], f"{len(words)} words")


# Kind -> its share of the cases, and the strategy.
KINDS: dict[str, tuple[float, Callable[[Path], st.SearchStrategy[Case]]]] = {
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
