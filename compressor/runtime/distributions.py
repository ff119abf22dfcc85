"""`compress-heads-runtime` has some of the files of `compress-heads`, at the same places.

Of one version they are the same files, and both may be installed. Of two versions, whichever was
installed last has overwritten some files of the other.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from compressor.errors import EnvironmentProblem

DISTRIBUTIONS = ("compress-heads", "compress-heads-runtime")


def require_one_version() -> None:
    """Check that the distributions that are installed are of the same version.

    Raises:
        EnvironmentProblem: they are not.
    """
    installed = {}
    for name in DISTRIBUTIONS:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    if len(set(installed.values())) > 1:
        both = " and ".join(f"{name} {number}" for name, number in installed.items())
        raise EnvironmentProblem(
            f"{both} are installed, which overwrite each other's files; uninstall both, then "
            "install compress-heads to make models, or compress-heads-runtime to run them",
            id="distributions-differ",
        )
