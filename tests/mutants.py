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
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import readme

HERE = Path(__file__).parents[1]
WORK = HERE / "build" / "mutants"
RESULTS = HERE / "benchmarks" / "results" / "mutants.json"
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
    "steps": (["compressor/steps.py"], ["tests/test_steps.py"]),
    "runtime": (
        [f"compressor/runtime/{name}.py" for name in ("batching", "search", "decoder")],
        ["tests/runtime"],
    ),
    "export": (["compressor/export/int8.py"], ["tests/export"]),
}
# The slow tests are asked about what the others do not notice.
SPEEDS = {"quick": "not slow and not attack", "all": "not attack"}
NOTICED = {"killed", "timeout", "segfault"}


def prepare(room: str, speed: str) -> Path:
    """A folder in which mutmut finds this checkout, and its settings for tests of a room."""
    folder = WORK / room / speed
    # Python remembers of a folder on its path that it was not there.
    (folder / "mutants").mkdir(parents=True, exist_ok=True)
    for name in ("compressor", "tests", "pyproject.toml"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(HERE / name)
    changed, tests = ROOMS[room]
    settings = {
        "source_paths": ["compressor"],
        "only_mutate": changed,
        "pytest_add_cli_args": [f"-m {SPEEDS[speed]}"],
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


def sample(room: str, folder: Path) -> list[str]:
    """The names of the faults that are tried: those with the lowest hashes."""
    from mutmut.configuration import reset_config
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    names = []
    with contextlib.chdir(folder):
        reset_config()
        for pattern in ROOMS[room][0]:
            for path in sorted(Path().glob(pattern)):
                made = mutate_file_contents(str(path), path.read_text(encoding="utf-8"))
                names += [get_mutant_name(path, name) for name in made.mutant_names]
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:SAMPLE]


def statuses(folder: Path, names: list[str]) -> dict[str, str]:
    """What is known of the faults, in mutmut's words."""
    from mutmut.stats import status_by_exit_code

    codes = {}
    for file in (folder / "mutants").rglob("*.meta"):
        codes |= json.loads(file.read_text(encoding="utf-8"))["exit_code_by_key"]
    return {name: status_by_exit_code[codes.get(name)] for name in sorted(names)}


def try_faults(room: str) -> dict[str, str]:
    """Try the faults of a room that have not been noticed; fault -> status."""
    noticed: set[str] = set()
    for speed in SPEEDS:
        folder = prepare(room, speed)
        names = sample(room, folder)
        noticed |= {name for name, status in statuses(folder, names).items() if status in NOTICED}
        if left := [name for name in names if name not in noticed]:
            run(folder, left)
        found = statuses(folder, names)
        noticed |= {name for name, status in found.items() if status in NOTICED}
        print(f"{room}, {speed} tests: {len(noticed)} of {len(names)} noticed", flush=True)
    if unknown := [name for name, status in found.items() if status == "not checked"]:
        raise SystemExit(f"{room}: {unknown[0]} and {len(unknown) - 1} others were not tried")
    return {name: "noticed" if name in noticed else status for name, status in found.items()}


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
    # It also fails where none of the tests reaches a fault: of all faults, then, nothing is known.
    subprocess.run(command, cwd=folder, env=environment, check=False)


def table(results: dict[str, dict[str, str]]) -> str:
    """Faults and how many of them were noticed, by room and in all."""
    lines = ["| room | faults | noticed | share |", "|---|---|---|---|"]
    counts = {
        room: (len(found), sum(status == "noticed" for status in found.values()))
        for room, found in results.items()
    }
    counts["all"] = tuple(map(sum, zip(*counts.values(), strict=True)))  # type: ignore[assignment]
    for room, (tried, noticed) in counts.items():
        lines.append(f"| {room} | {tried} | {noticed} | {100 * noticed / tried:.0f} % |")
    return "\n".join(lines) + "\n"


def main() -> None:
    for room in sys.argv[1:] or ROOMS:
        found = try_faults(room)
        results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
        results = {
            name: {**results, room: found}[name] for name in ROOMS if name in {*results, room}
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        RESULTS.with_suffix(".md").write_text(table(results), encoding="utf-8")
        for page, text in readme.with_tables().items():
            page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
