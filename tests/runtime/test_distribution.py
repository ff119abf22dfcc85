"""The runtime as a distribution of its own: its files, its needs, and beside the full package."""

from __future__ import annotations

import ast
import itertools
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from compressor.runtime import Classifier, Translator
from tests.helpers import runtime_artifacts

ROOT = Path(__file__).parents[2]
# What NumPy, onnxruntime and tokenizers need themselves when they are imported.
ALLOWED = {"numpy", "onnxruntime", "tokenizers", "flatbuffers", "packaging", "google", "compressor"}

# Every installed package is blocked but those allowed, and the repository is not on the path.
START = """
import json, sys
sys.path.insert(0, {site!r})
ALLOWED = {allowed!r} | set(sys.stdlib_module_names)

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

# An editable installation of the full package would find its modules.
sys.meta_path[:] = [x for x in sys.meta_path if "__editable__" not in getattr(x, "__module__", "")]
sys.meta_path.insert(0, Blocker())
import compressor
assert compressor.__file__.startswith({site!r}), compressor.__file__
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with the files of the wheel and nothing else."""
    made = tmp_path_factory.mktemp("wheel")
    copy = tmp_path_factory.mktemp("source")  # building writes beside the sources
    for folder in ("compressor", "runtime"):
        _copy(ROOT / folder, copy / folder)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", made, copy / "runtime"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = made.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(made / "site")
    return made / "site"


def _copy(source: Path, target: Path) -> None:
    kinds = (".py", ".toml", ".md", "")
    for path in source.rglob("*"):
        if path.is_file() and path.suffix in kinds and "build" not in path.parts:
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())


def run(site: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    start = START.format(site=str(site), allowed=ALLOWED)
    return subprocess.run(
        [sys.executable, "-I", "-c", start + script, *arguments],
        capture_output=True, text=True, encoding="utf-8", cwd=site,
    )  # fmt: skip


ANSWER = """
from compressor.runtime import Classifier, Translator
classifier, translator, texts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
print(json.dumps([Classifier(classifier).classify(texts), Translator(translator).translate(texts)]))
"""


@pytest.mark.slow
def test_it_answers_with_numpy_onnxruntime_and_tokenizers_alone(site: Path):
    classifier = runtime_artifacts.classifier("distilbert").directory
    translator = runtime_artifacts.translator().directory
    texts = ["w3 w9 w40", "w5 é"]
    done = run(site, ANSWER, str(classifier), str(translator), json.dumps(texts))
    assert done.returncode == 0, done.stderr
    expected = [Classifier(classifier).classify(texts), Translator(translator).translate(texts)]
    assert json.loads(done.stdout) == expected


@pytest.mark.slow
def test_what_it_lacks_is_told(site: Path):
    done = run(site, "import compressor\ntry:\n    compressor.load('out')\n"
               "except Exception as error:\n    print(error.id)")  # fmt: skip
    assert done.stdout == "full-package-missing\n", done.stderr


@pytest.mark.slow
def test_it_needs_what_it_says(site: Path):
    (metadata,) = site.glob("*.dist-info/METADATA")
    needed = re.findall(r"^Requires-Dist: (\S+?)[<>=;\[ ].*$", metadata.read_text(), re.MULTILINE)
    packages = ["onnxruntime", "onnxruntime-gpu", "openvino"]
    assert sorted(needed) == ["ctranslate2", "numpy", *packages, "tokenizers"]


@pytest.mark.slow
@pytest.mark.parametrize(("other", "told"), [("0.0.1", True), (None, False)])
def test_beside_the_full_package_of_another_version_it_refuses(other, told: bool, site: Path):
    """Of the same version both have the same files."""
    own = next(site.glob("*.dist-info")).name.split("-")[1].removesuffix(".dist")
    full = site / f"compress_heads-{other or own}.dist-info"
    full.mkdir()
    text = f"Metadata-Version: 2.1\nName: compress-heads\nVersion: {other or own}\n"
    (full / "METADATA").write_text(text, encoding="utf-8")
    done = run(site, "import compressor.runtime")
    (full / "METADATA").unlink()
    full.rmdir()
    assert (done.returncode != 0) == told, done.stderr
    assert ("compress-heads 0.0.1 and compress-heads-runtime" in done.stderr) == told


def test_its_list_of_files_is_what_the_runtime_imports():
    settings = tomllib.loads((ROOT / "runtime" / "pyproject.toml").read_text(encoding="utf-8"))
    modules = settings["tool"]["setuptools"]["py-modules"]
    listed = {name for name in modules if not name.endswith("__init__")}
    waiting = list((ROOT / "compressor" / "runtime").rglob("*.py"))
    found = {"compressor.storage.version"}  # of compressor/__init__.py
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop().read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("compressor."):
                if node.module.startswith("compressor.runtime") or node.module in found:
                    continue
                found.add(node.module)
                waiting.append((ROOT / node.module.replace(".", "/")).with_suffix(".py"))
    assert found == listed


def test_both_distributions_ask_for_the_same_versions():
    def needs(path: Path) -> dict[str, str]:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"].values()
        found = [*project["dependencies"], *itertools.chain.from_iterable(extras)]
        pattern = r"([\w-]+)(?:\[[\w,]+\])?([<>=][^;]*)"
        return {m[1]: m[2] for line in found if (m := re.match(pattern, line))}

    full, own = needs(ROOT / "pyproject.toml"), needs(ROOT / "runtime" / "pyproject.toml")
    assert {name: full[name] for name in own} == own
