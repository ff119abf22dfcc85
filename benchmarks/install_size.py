"""Size on disk and seconds to the first answer: the runtime, the full package and their rivals.

    python -m benchmarks.install_size --full PYTHON [--work DIRECTORY] [--repeats 5]

Makes environments from the package index: of the runtime with each engine, and of CTranslate2
alone. The full package, and transformers with PyTorch, are measured where they are installed
already (--full, the Python of that environment), because PyTorch comes in builds of very different
size. A size is that of the files of a package and of all it needs, as pip has noted them. Seconds
are those of a new process until the bundled translator has translated a sentence, files in the
disk's cache: the fastest of several, since other programs only make it slower. OpenVINO runs no
translators: it has a size alone. A container image is that much larger than the image of Python
that it starts from.

Writes benchmarks/results/install-size.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pages import ROOT, arguments, markdown_table, publish
from compressor import example
from compressor.report import numbers
from compressor.throughput.hardware import describe

FULL = "compress-heads"
SENTENCE = "The train is late again."

# Runs in the environment that is measured: prints bytes and versions of packages and their needs.
SIZES = """
import importlib.metadata as metadata, importlib.util, json, sys
from pathlib import Path
from pip._vendor.packaging.requirements import Requirement

waiting, seen, sizes, versions = [Requirement(x) for x in sys.argv[1:]], set(), {}, {}
while waiting:
    wanted = waiting.pop()
    key = (wanted.name.lower().replace("_", "-"), tuple(sorted(wanted.extras)))
    if key in seen:
        continue
    seen.add(key)
    found = metadata.distribution(wanted.name)
    paths = {Path(found.locate_file(file)).resolve() for file in found.files or ()}
    if "__editable__" in " ".join(path.name for path in paths):
        own = importlib.util.find_spec("compressor").submodule_search_locations[0]
        paths |= {path for path in Path(own).rglob("*") if path.suffix != ".pyc"}
    sizes[key[0]] = sum(path.stat().st_size for path in paths if path.is_file())
    versions[key[0]] = found.version
    for line in found.requires or ():
        need = Requirement(line)
        extras = wanted.extras or {""}
        if need.marker is None or any(need.marker.evaluate({"extra": x}) for x in extras):
            waiting.append(need)
print(json.dumps([sizes, versions]))
"""

RUNTIME = """
import sys
from compressor.runtime import Translator
print(Translator(sys.argv[1]).translate([sys.argv[3]])[0])
"""
OTHER_ENGINE = RUNTIME.replace("(sys.argv[1])", '(sys.argv[1], engine="ctranslate2")')
TRANSFORMERS = """
import sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
tokens = model.generate(**tokenizer([sys.argv[3]], return_tensors="pt"))
print(tokenizer.batch_decode(tokens, skip_special_tokens=True)[0])
"""
CTRANSLATE2 = """
import sys
import ctranslate2, sentencepiece
source = sentencepiece.SentencePieceProcessor(sys.argv[2] + "/source.spm")
target = sentencepiece.SentencePieceProcessor(sys.argv[2] + "/target.spm")
pieces = source.encode(sys.argv[3], out_type=str) + ["</s>"]
model = ctranslate2.Translator(sys.argv[1])
print(target.decode(model.translate_batch([pieces])[0].hypotheses[0]))
"""
CONVERT = """
import sys
sys.path.append(sys.argv[3])
from ctranslate2.converters import TransformersConverter
TransformersConverter(sys.argv[1]).convert(sys.argv[2])
"""


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    python: Path
    packages: tuple[str, ...]  # what a user installs
    # Translates; takes the model made for it, the checkpoint, and a sentence. Empty where no
    # translator runs.
    script: str
    model: Path  # what the script is given

    @property
    def name(self) -> str:
        return ", ".join(self.packages)


def call(python: Path, *arguments: str | Path, cwd: Path | None = None) -> str:
    """What a program prints; ends this one if it fails."""
    done = subprocess.run([python, *arguments], capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def environment(directory: Path, *packages: str) -> Path:
    """The Python of a new environment with some packages, at the versions of constraints.txt."""
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *packages)
    return python


def seconds(setting: Setting, work: Path, repeats: int) -> tuple[float, str]:
    """Least time of several new processes, after one that fills the cache, and their answer."""
    checkpoint = example.model()
    arguments = ("-c", setting.script, setting.model, checkpoint, SENTENCE)
    # Only the full package may be found in the clone.
    cwd = ROOT if setting.packages == (FULL,) else work
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        answer = call(setting.python, *arguments, cwd=cwd)
        times.append(time.perf_counter() - started)
    return min(times[1:]), answer.strip()


def prepare(full: Path, work: Path) -> list[Setting]:
    """The environments and models."""
    artifact, converted, model = work / "artifact", work / "ctranslate2", example.model()
    engines = ("--engines", "onnxruntime,ctranslate2")
    call(full, "-m", "compressor", "export", "-m", model, "-o", artifact, *engines, cwd=ROOT)
    extras = {"cpu": RUNTIME, "cpu,ctranslate2": OTHER_ENGINE, "cpu,openvino": ""}
    settings = []
    for extra, script in extras.items():
        python = environment(work / f"runtime-{extra}", f"{ROOT / 'runtime'}[{extra}]")
        settings.append(Setting(python, (f"compress-heads-runtime[{extra}]",), script, artifact))
    rival = environment(work / "rival", "ctranslate2", "sentencepiece")
    site = call(full, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    call(rival, "-c", CONVERT, model, converted, site)
    peer = ("ctranslate2", "sentencepiece")
    dense = ("transformers", "torch", "sentencepiece")
    return [
        *settings,
        Setting(rival, peer, CTRANSLATE2, converted),
        Setting(full, dense, TRANSFORMERS, model),
        Setting(full, (FULL,), RUNTIME, artifact),
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--full", type=Path, required=True, help="Python with the full package")
    parser.add_argument("--work", type=Path, help="where environments are made; default: temporary")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (args.work or Path(temporary)).resolve()
        rows = []
        for setting in prepare(args.full.absolute(), work):
            sizes, versions = json.loads(call(setting.python, "-c", SIZES, *setting.packages))
            taken, answer = seconds(setting, work, args.repeats) if setting.script else (None, "")
            print(f"{setting.name}: {sum(sizes.values()) / 1e6:.0f} MB, {taken} s: {answer}",
                  file=sys.stderr)  # fmt: skip
            largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
            told = ", ".join(
                f"{name} {versions[name]} {sizes[name] / 1e6:,.0f} MB" for name in largest
            )
            rows.append((setting.name, len(sizes), sum(sizes.values()) / 1e6, taken, told))
    publish("install-size", render(rows, args.repeats))


def render(rows: list[tuple[str, int, float, float | None, str]], repeats: int) -> str:
    """The table as Markdown."""
    titles = ["installed", "packages", "MB on disk", "seconds to the first answer", "largest"]
    cells = [
        [name, str(count), f"{size:,.0f}", numbers.fixed(taken, 2), largest]
        for name, count, size, taken, largest in rows
    ]
    hardware = ", ".join(f"{key} {value}" for key, value in describe().items())
    note = (
        "Sizes are those of the packages with all that they need. Seconds are those of a new "
        f"process that translates one sentence with the bundled translator, the fastest of "
        f"{repeats}, files in the disk's cache ({hardware})."
    )
    return f"{markdown_table(titles, 'l', cells)}\n\n{note}\n"


if __name__ == "__main__":
    main()
