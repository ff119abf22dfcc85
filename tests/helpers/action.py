"""Runs the shell steps of `action.yml` as GitHub's runner does: variables, files and shell.

Steps that use other actions are left out; `compress` and `python` are this checkout's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_PYTHON = f"""#!/bin/sh
[ "$1 $2" = "-m pip" ] && {{ echo "$@" >> "$RUNNER_TEMP/pip.txt"; exit; }}
exec {sys.executable} "$@"
"""
# With a finished run at hand, `compress run` gives that instead.
_COMPRESS = f"""#!/bin/bash
if [ "$1" = run ] && [ -n "$FINISHED" ]; then
  printf '%s\\n' "$@" > "$RUNNER_TEMP/run.txt"
  mkdir -p "${{2#--output=}}" && cp "$FINISHED" "${{2#--output=}}/report.json"
  exit "${{RUN_STATUS:-0}}"
fi
exec {sys.executable} -m compressor "$@"
"""
_GH = f"""#!{sys.executable}
import os, pathlib, sys
log = pathlib.Path(os.environ["RUNNER_TEMP"], "gh.txt")
with log.open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if os.environ.get("GH_FAILS"):
    sys.exit("HTTP 403: Resource not accessible by integration")
if "--paginate" in sys.argv:
    assert os.environ["marker"].startswith("<!-- compress gate ")
    print(os.environ.get("COMMENTS", ""), end="")
"""


@dataclass
class Runner:
    """One job.

    Args:
        directory: an empty one, for the workspace and the runner's own files.
        github: values of the context `github`, by path.
        environment: more variables.
    """

    directory: Path
    inputs: dict[str, str]
    github: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    cache_hit: str = ""
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    summary: str = ""
    log: str = ""
    ran: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.temporary, self.workspace = self.directory / "temp", self.directory / "workspace"
        tools = self.directory / "tools"
        for directory in (self.temporary, self.workspace, tools):
            directory.mkdir(exist_ok=True)
        for name, text in (("python", _PYTHON), ("compress", _COMPRESS), ("gh", _GH)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self._path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        known = {name: str(x.get("default", "")) for name, x in ACTION["inputs"].items()}
        assert self.inputs.keys() <= known.keys()
        self.inputs = known | self.inputs

    def run(self) -> int:
        """All steps until one fails; the status of the last."""
        self.outputs["cache"] = {"cache-hit": self.cache_hit}
        for step in STEPS:
            if "if" in step and not self._holds(step["if"]):
                continue
            if "run" not in step:
                self.ran.append(step["uses"])
                continue
            self.ran.append(step["name"])
            status = self._run(step)
            if status:
                return status
        return 0

    def _run(self, step: dict[str, Any]) -> int:
        assert step["shell"] == "bash"
        files = {n: self.temporary / f"{n}.txt" for n in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for path in files.values():
            path.write_text("")
        script = self.temporary / "step.sh"
        script.write_text(step["run"], encoding="utf-8")
        where = self.workspace / self._filled(step.get("working-directory", "."))
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "RUNNER_TEMP": str(self.temporary),
            "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_REPOSITORY": "acme/models",
            "PATH": self._path, **{name: str(path) for name, path in files.items()},
            **self.environment,
            **{name: self._filled(str(value)) for name, value in step.get("env", {}).items()},
        }  # fmt: skip
        done = subprocess.run(
            [shutil.which("bash"), "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=where, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        self.log += done.stdout + done.stderr
        lines = files["GITHUB_OUTPUT"].read_text("utf-8").splitlines()
        self.outputs[step.get("id", "")] = dict(line.split("=", 1) for line in lines)
        self.summary += files["GITHUB_STEP_SUMMARY"].read_text("utf-8")
        return done.returncode

    def _filled(self, text: str) -> str:
        return _EXPRESSION.sub(lambda found: self._value(found[1]), text)

    def _value(self, name: str) -> str:
        kind, _, rest = name.partition(".")
        if kind == "inputs":
            return self.inputs[rest]
        if kind == "steps":
            step, _, output = rest.partition(".outputs.")
            return self.outputs[step].get(output, "")
        if kind == "github":
            return self.github.get(rest, "")
        if name == "hashFiles(inputs.cache-files)":
            return self._hash_files(self.inputs["cache-files"])
        return {"runner.temp": str(self.temporary), "runner.os": "Linux"}[name]

    def _hash_files(self, patterns: str) -> str:
        """Of the contents of all files in the workspace that match; empty where none does."""
        found = {path for line in patterns.split() for path in self.workspace.glob(line)}
        files = sorted(path for path in found if path.is_file())
        return sha256(b"".join(path.read_bytes() for path in files)).hexdigest() if files else ""

    def _holds(self, condition: str) -> bool:
        """Conditions of the forms that the action has: `A`, `A == 'x'`, `A != 'x'`, with `&&`."""
        for part in condition.split(" && "):
            found = re.fullmatch(r"([\w.-]+)(?: (==|!=) '(.*)')?", part)
            assert found is not None, part
            value = self._value(found[1])
            if not (value if found[2] is None else (value == found[3]) == (found[2] == "==")):
                return False
        return True
