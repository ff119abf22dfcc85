"""What `compress doctor` checks, on environments that are made up."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from compressor.throughput import diagnosis, hardware

# What a distribution says of its requirements, as packaging spells it.
REQUIRED = [
    "torch>=2.11",
    'accelerate<2,>=1.12; extra == "distributed"',
    'rouge-score<0.2,>=0.1.2; extra == "summarization"',
    'pytest>=8; extra == "test"',
]
USABLE = {"onnxruntime-gpu": "1.31.0", "torch": "2.11+cpu", "transformers": "5.17.1"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Package -> version of an environment without problems."""
    packages = dict(USABLE)
    monkeypatch.setattr(diagnosis, "version_of", packages.get)
    monkeypatch.setattr(diagnosis, "requires", {"compress-heads": REQUIRED}.__getitem__)
    return packages


def test_packages_of_extras_are_listed_with_their_versions_or_how_to_install_them(installed):
    installed["accelerate"] = "1.15.0"
    assert diagnosis._optional() == {
        "accelerate": "1.15.0 (several processes)",
        "rouge-score": "absent: `pip install 'rouge-score<0.2,>=0.1.2'` (ROUGE)",
    }


def test_a_checkout_declares_no_extras(monkeypatch):
    def fails(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(diagnosis, "requires", fails)
    assert diagnosis._optional() == {
        "compress-heads": "not installed, this is a checkout; `pip install .` in it"
    }


def test_a_usable_environment_has_no_problems(installed):
    assert diagnosis._problems() == []


@pytest.mark.parametrize(
    ("package", "version", "problem"),
    [
        ("onnxruntime", "1.31.0", "onnxruntime and onnxruntime-gpu are both installed"),
        ("onnxruntime-gpu", None, "onnxruntime is not installed"),
        ("torch", None, "torch is not installed"),
        ("torch", "2.9.1", "torch 2.9.1 is too old; install 2.11 or newer"),
        ("transformers", "5.9", "transformers 5.9 is too old; install 5.17 or newer"),
    ],
)
def test_each_problem_is_named(installed, package, version, problem):
    installed[package] = version
    (found,) = diagnosis._problems()
    assert found.startswith(problem)


def test_a_device_that_does_not_work_is_a_problem_if_it_is_the_processor(installed, monkeypatch):
    from compressor.errors import EnvironmentProblem
    from compressor.runtime import session

    def fails(device: str) -> str:
        raise EnvironmentProblem(f"{device} fails", id="made-up")

    monkeypatch.setattr(session, "try_device", fails)
    found, problems = diagnosis.diagnose()
    assert found["providers"] == {"cpu": "not usable: cpu fails", "cuda": "not usable: cuda fails"}
    assert problems == ["cpu fails"]
    assert found["versions"] == hardware.versions()
