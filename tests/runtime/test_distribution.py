"""Without PyTorch: the runtime as a distribution of its own, and commands for artifacts."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement, SpecifierSet

from compressor.runtime import Classifier, Translator
from tests.helpers.report_samples import translator_report
from tests.helpers.runtime_artifacts import Exported

ROOT = Path(__file__).parents[2]
# What NumPy, onnxruntime and tokenizers need themselves when they are imported.
ALLOWED = {"numpy", "onnxruntime", "tokenizers", "flatbuffers", "packaging", "google", "compressor"}
BLOCKED = {"torch", "transformers", "onnx", "sentencepiece", "scipy", "sklearn", "matplotlib"}

BLOCKER = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if blocks(name.partition(".")[0]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""
# Every installed package is blocked but those allowed, and the repository is not on the path.
START = """
sys.path.insert(0, {site!r})
blocks = lambda name: name not in {allowed!r} | set(sys.stdlib_module_names)
# An editable installation of the full package would find its modules.
sys.meta_path[:] = [x for x in sys.meta_path if "__editable__" not in getattr(x, "__module__", "")]
import compressor
assert compressor.__file__.startswith({site!r}), compressor.__file__
"""


def python(script: str, *arguments: object, options: tuple = (), cwd: Path = ROOT):
    command = [sys.executable, *options, "-c", BLOCKER + script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=cwd)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with the files of the wheel and nothing else."""
    wheels = tmp_path_factory.mktemp("wheel")
    copy = tmp_path_factory.mktemp("source")  # building writes beside the sources
    for name in ("compressor", "runtime"):
        unread = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "example")
        shutil.copytree(ROOT / name, copy / name, ignore=unread)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", wheels, copy / "runtime"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(wheels / "site")
    return wheels / "site"


def run(site: Path, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    start = START.format(site=str(site), allowed=ALLOWED)
    return python(start + script, *arguments, options=("-I",), cwd=site)


ANSWER = """
from compressor.runtime import Classifier, Translator
classifier, translator, texts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
print(json.dumps([Classifier(classifier).classify(texts), Translator(translator).translate(texts)]))
try:
    compressor.load("out")
except Exception as error:
    print(error.id)
"""


@pytest.mark.slow
def test_it_answers_with_numpy_onnxruntime_and_tokenizers_alone(
    site: Path, bert: Path, pieces: Exported
):
    """An error names the package that it lacks."""
    texts = ["w3 w9 w40", "w5 é"]
    done = run(site, ANSWER, bert, pieces.directory, json.dumps(texts))
    assert done.returncode == 0, done.stderr
    answers, missing = done.stdout.splitlines()
    expected = [Classifier(bert).classify(texts), Translator(pieces.directory).translate(texts)]
    assert json.loads(answers) == expected
    assert missing == "full-package-missing"


@pytest.mark.slow
def test_beside_the_full_package_of_another_version_it_refuses(site: Path):
    full = site / "compress_heads-0.0.1.dist-info"
    full.mkdir()
    text = "Metadata-Version: 2.1\nName: compress-heads\nVersion: 0.0.1\n"
    (full / "METADATA").write_text(text, encoding="utf-8")
    done = run(site, "import compressor.runtime")
    shutil.rmtree(full)
    assert "compress-heads 0.0.1 and compress-heads-runtime" in done.stderr


def test_its_list_of_files_is_what_the_runtime_imports():
    settings = tomllib.loads((ROOT / "runtime" / "pyproject.toml").read_text(encoding="utf-8"))
    modules = settings["tool"]["setuptools"]["py-modules"]
    listed = {name for name in modules if not name.endswith("__init__")}
    waiting = list((ROOT / "compressor" / "runtime").rglob("*.py"))
    imported = {"compressor.storage.version"}  # of compressor/__init__.py
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop().read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("compressor."):
                if node.module.startswith("compressor.runtime") or node.module in imported:
                    continue
                imported.add(node.module)
                waiting.append((ROOT / node.module.replace(".", "/")).with_suffix(".py"))
    assert imported == listed


def test_both_distributions_ask_for_the_same_versions():
    def needs(path: Path) -> dict[str, SpecifierSet]:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
        return {wanted.name: wanted.specifier for wanted in map(Requirement, lines)}

    full, runtime = needs(ROOT / "pyproject.toml"), needs(ROOT / "runtime" / "pyproject.toml")
    assert {name: full[name] for name in runtime} == runtime


COMMANDS = f"""
blocks = {BLOCKED!r}.__contains__
from compressor.commands import invoke

classifier, translator, source, report = sys.argv[1:]
statuses = [invoke(["classify", classifier, source]), invoke(["translate", translator, source]),
            invoke(["gate", report, "--max-metric-drop", "bleu=100", "-q"])]
print(statuses, sorted({{name.partition(".")[0] for name in sys.modules}} & {BLOCKED!r}))
"""


@pytest.mark.slow
def test_commands_for_artifacts_load_neither_torch_nor_transformers(
    bert: Path, pieces: Exported, tmp_path: Path
):
    texts = ["w3 w9 w40", "", "w5 e\u0301"]
    (tmp_path / "in.txt").write_text("\n".join(texts), encoding="utf-8")
    report = tmp_path / "report.json"
    translator_report().save(report)
    done = python(COMMANDS, bert, pieces.directory, tmp_path / "in.txt", report)
    labels = Classifier(bert).classify(texts)
    translations = Translator(pieces.directory).translate(texts)
    assert done.stdout.splitlines()[:6] == [labels[0], "", labels[2], *translations], done.stderr
    assert done.stdout.splitlines()[-1] == "[0, 0, 0] []"
