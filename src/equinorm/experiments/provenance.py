"""What a result was computed with: versions and the commit of this code."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch

import equinorm


def versions() -> dict[str, str]:
    """Of equinorm, torch and Python."""
    return {"equinorm": equinorm.__version__, "torch": torch.__version__, "python": platform.python_version()}


def commit() -> str | None:
    """The git commit of the package, "-dirty" if files were changed since; None if it is not in a repository."""
    package = Path(equinorm.__file__)
    try:
        # An installed package may lie inside of somebody else's repository, which does not track it.
        _git(package.parent, "ls-files", "--error-unmatch", package.name)
        return _git(package.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
