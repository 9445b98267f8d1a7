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
    """The git commit of the package, "-dirty" if its files were changed since; None if it is not in a repository."""
    package = Path(equinorm.__file__)
    try:
        # An installed package may lie inside of somebody else's repository, which does not track it.
        _git(package.parent, "ls-files", "--error-unmatch", package.name)
        changed = _git(package.parent, "status", "--porcelain", "--untracked-files=no", "--", ".")
        return _git(package.parent, "rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
