"""Optional packages: imported where they are used, with one clear line when they cannot be."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from equinorm.errors import EquinormError


def require(module: str) -> ModuleType:
    """Import a package of the extra ``[experiments]``."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EquinormError(f'{module}: {error}; pip install "equinorm[experiments]" brings it') from None
    except RuntimeError as error:  # torchvision, when it was built for another torch
        reason = str(error).splitlines()[0]
        raise EquinormError(
            f"{module} does not import beside torch {torch.__version__}: {reason}. Install the build of torchvision "
            "that was made for it: from where torch came from, as `pip install torch torchvision` does for both"
        ) from None
