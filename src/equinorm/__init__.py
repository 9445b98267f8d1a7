"""Equi-normalization of neural networks: the point of minimal norm among all rescalings of a function."""

from equinorm.balance import balance
from equinorm.errors import ArgumentError, EquinormError
from equinorm.find import symmetries
from equinorm.report import Report
from equinorm.symmetry import Group, Member, Pin, Symmetries
from equinorm.training import ENorm, ImplicitENorm, register_state

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ENorm",
    "EquinormError",
    "Group",
    "ImplicitENorm",
    "Member",
    "Pin",
    "Report",
    "Symmetries",
    "balance",
    "register_state",
    "symmetries",
]
