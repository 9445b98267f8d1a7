"""One thread for many small operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def single_thread() -> Iterator[None]:
    """Run torch in this thread alone: handing small tensors to other threads costs more than the work.

    On a busy machine it costs a hundred times more, as every operation waits for the other threads' turn.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
