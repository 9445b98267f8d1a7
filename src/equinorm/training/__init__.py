"""Training with ENorm, on top of the core's analysis."""

from equinorm.training.enorm import ENorm
from equinorm.training.implicit import ImplicitENorm
from equinorm.training.state import register_state

__all__ = ["ENorm", "ImplicitENorm", "register_state"]
