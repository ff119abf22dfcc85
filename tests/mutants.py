"""How many deliberate faults the tests of a room notice.

    python -m tests.mutants [ROOM ...]

mutmut changes one operator, number, argument or condition at a time, and runs those of the room's
tests that reach the changed function. A fixed sample of each room is tried. What was noticed stays
noticed until its function changes; all others are tried again. So a run that was stopped goes on,
and one after new tests tries what had not been noticed. What changes is shown by `mutmut show NAME`
in build/mutants/ROOM. Results go to benchmarks/results, and as a table into CONTRIBUTING.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import readme
from benchmarks.pages import RESULTS, markdown_table, publish, read_json, write_json

HERE = Path(__file__).parents[1]
WORK = HERE / "build" / "mutants"
SAMPLE = 44  # faults of each room
# Room -> what is changed, and the tests that are asked.
ROOMS = {
    "importance": (["compressor/importance/*.py"], ["tests/importance"]),
    "budgets": (["compressor/budgets/*.py"], ["tests/budgets"]),
    "recovery": (["compressor/recovery/*.py"], ["tests/recovery"]),
    "training": (
        ["compressor/training/*.py"],
        ["tests/test_training.py", "tests/test_optimizer.py", "tests/recovery/test_text.py"],
    ),
    "model": (["compressor/model/surgery.py", "compressor/model/sublayers.py"], ["tests/model"]),
    "evaluation": (["compressor/evaluation/*.py"], ["tests/evaluation"]),
    "throughput": (["compressor/throughput/*.py"], ["tests/throughput"]),
    "steps": (["compressor/steps/store.py"], ["tests/test_steps.py"]),
    "runtime": (
        [f"compressor/runtime/{name}.py" for name in ("batching", "search", "decoder")],
        [
            f"tests/runtime/test_{name}.py"
            for name in ("batching", "generate", "classifier", "translator", "decoder_forms")
        ],
    ),
    "export": (["compressor/export/int8.py"], ["tests/export"]),
}
# Of these only the tests that are not slow are asked, which suffice.
QUICK = ("training", "model", "evaluation", "export")
READ_BY_TESTS = ("benchmarks", "docs", "examples", "runtime", "LICENSE", "README.md")
NOTICED = {"killed", "timeout", "segfault"}


def prepare(room: str) -> Path:
    """A folder in which mutmut finds this checkout, and its settings for tests of a room."""
    folder = WORK / room
    # Python remembers of a folder on its path that it was not there.
    (folder / "mutants").mkdir(parents=True, exist_ok=True)
    for name in ("compressor", "pyproject.toml", "tests", *READ_BY_TESTS):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(HERE / name)
    changed, tests = ROOMS[room]
    marks = "not slow and not attack" if room in QUICK else "not attack"
    settings = {
        "source_paths": ["compressor"],
        "only_mutate": changed,
        "also_copy": list(READ_BY_TESTS),
        "pytest_add_cli_args": [f"-m {marks}"],
        "pytest_add_cli_args_test_selection": tests,
        "use_git_change_detection": ["false"],
        "track_dependencies": ["false"],
        # A fault that never ends is noticed after so many times what the tests take.
        "timeout_multiplier": ["4"],
        "timeout_constant": ["15"],
    }
    lines = [f"{name} = " + "\n    ".join(values) for name, values in settings.items()]
    (folder / "setup.cfg").write_text("\n".join(["[mutmut]", *lines, ""]), encoding="utf-8")
    return folder


def sample(room: str, folder: Path) -> dict[str, str]:
    """The faults that are tried, which are those with the lowest hashes, and what is known of them.

    mutmut makes the faults anew of functions that have changed.
    """
    codes: dict[str, int | None] = {}
    with contextlib.chdir(folder):
        from mutmut.__main__ import create_mutants_for_file  # which reads the settings at once
        from mutmut.configuration import reset_config
        from mutmut.mutation.data import SourceFileMutationData
        from mutmut.stats import status_by_exit_code

        reset_config()
        for path in sorted(path for pattern in ROOMS[room][0] for path in Path().glob(pattern)):
            made = Path("mutants") / path
            made.parent.mkdir(parents=True, exist_ok=True)
            create_mutants_for_file(path, made)
            data = SourceFileMutationData(path=path)
            data.load()
            codes |= data.exit_code_by_key
    names = sorted(codes, key=lambda name: hashlib.sha256(name.encode()).digest())[:SAMPLE]
    return {name: status_by_exit_code[codes[name]] for name in sorted(names)}


def try_faults(room: str) -> dict[str, str]:
    """Try the faults of a room that have not been noticed; fault -> status."""
    folder, tried = prepare(room), set[str]()
    # Which tests reach which function: mutmut asks only those anew that it does not know.
    (folder / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
    for copy in (folder / "mutants" / "compressor").rglob("*.py"):
        if not (HERE / copy.relative_to(folder / "mutants")).exists():  # it has moved
            copy.unlink()
    # More than once, since mutmut drops what it knows where its settings have changed.
    while left := [
        name
        for name, status in sample(room, folder).items()
        if status not in NOTICED and name not in tried
    ]:
        run(folder, left)
        tried.update(left)
    return sample(room, folder)


def run(folder: Path, names: list[str]) -> None:
    """Let mutmut try some faults; it keeps what it finds in the folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "mutants"),  # of the processes that tests start
        "KEPT_EXPORTS": str(WORK / "exports"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    mutmut = Path(sys.executable).with_name("mutmut")
    command = [mutmut, "run", "--max-children", "1", *names]
    subprocess.run(command, cwd=folder, env=environment, check=True)


def changed_lines(folder: Path, name: str) -> list[str]:
    """What a fault changes: the line as it is, and as it was made."""
    with contextlib.chdir(folder):
        from mutmut.mutation.diff_apply import get_diff_for_mutant

        lines = get_diff_for_mutant(name).splitlines()[2:]  # behind the names of both files
    return [line for line in lines if line.startswith(("-", "+"))]


def record(room: str, found: dict[str, str]) -> None:
    """Write a room's result beside those of the others, and the table of all."""
    left = [name for name, status in found.items() if status not in NOTICED]
    results = read_json(RESULTS / "mutants.json", {})
    results[room] = {
        "faults": len(found),
        "noticed": len(found) - len(left),
        "left": {name: changed_lines(WORK / room, name) for name in left},
    }
    results = {name: results[name] for name in ROOMS if name in results}
    write_json(RESULTS / "mutants.json", results)
    counts = [(name, x["faults"], x["noticed"]) for name, x in results.items()]
    counts.append(("all", sum(n for _, n, _ in counts), sum(noticed for *_, noticed in counts)))
    rows = [(name, f"{n}", f"{noticed}", f"{noticed / n:.0%}") for name, n, noticed in counts]
    publish("mutants", markdown_table(["room", "faults", "noticed", "share"], "lr", rows) + "\n")


def main() -> None:
    for room in sys.argv[1:] or ROOMS:
        record(room, try_faults(room))
    for page, text in readme.with_tables().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
