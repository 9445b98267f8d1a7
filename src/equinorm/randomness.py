"""Random generators, left as they are while a model runs on the side: torch's, Python's and NumPy's."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def random_state_kept(model: nn.Module) -> Iterator[None]:
    """Restore on exit the state of every generator that the model may draw from."""
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    numpy, drawn = _numpy_random(), random.getstate()
    numpy_drawn = numpy and numpy.get_state()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(drawn)
            if numpy:
                numpy.set_state(numpy_drawn)


def seed_all(seed: int) -> None:
    """Start all of them from one number."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := _numpy_random():
        numpy.seed(seed)


def _numpy_random() -> Any:
    """NumPy is no dependency: a model that draws from it has imported it."""
    return sys.modules.get("numpy.random")
