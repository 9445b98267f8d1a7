"""One thread per test worker, and the same examples on every run."""

import torch
from hypothesis import HealthCheck, settings

# pytest-xdist runs one worker per core; more torch threads than that only wait for each other.
torch.set_num_threads(1)

# Tracing a model costs far more than drawing it, which hypothesis would call a slow test.
settings.register_profile(
    "equinorm", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("equinorm")
