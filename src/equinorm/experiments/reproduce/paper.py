"""The numbers of the paper's tables, as printed. ``tests/test_reproduce.py`` checks them against each other.

Several numbers for one experiment are the paper's own disagreement; all are shown.
"""

from __future__ import annotations

ELEMENTS = {
    ("ResNet-18", "ENorm"): 12,
    ("ResNet-18", "BN"): 636,
    ("ResNet-18", "GN"): 40,
    ("ResNet-50", "ENorm"): 30,
    ("ResNet-50", "BN"): 2845,
    ("ResNet-50", "GN"): 178,
}
"""tab:overhead: millions of elements accessed during normalisation; BN at batch 256, GN at batch 16."""

LEARNT_BY_NORMS = {"ResNet-18": 4800, "ResNet-50": 26650}
"""Section "Computational advantage over BN and GN": parameters learnt by BN or GN."""

MNIST = {
    "Baseline": (0.542,),
    "BN": (0.171,),
    "GN": (0.171,),
    "WN + BN": (0.162,),
    "ENorm": (0.179,),
    "ENorm + BN": (0.102,),
}
"""tab:mnist: average training L2 error."""

CIFAR_CONV = {
    "Baseline": (88.94,),
    "BN": (90.32,),
    "GN": (90.36,),
    "WN + BN": (90.50,),
    "ENorm": (89.31,),
    "ENorm + BN": (91.35, 91.85),
}
"""tab:conv: test accuracy. ENorm is c = 1.2. ENorm + BN is c = 1: 91.35 here, 91.85 in tab:conv_a."""

ASYMMETRY = {
    "ENorm, c = 1": (86.98,),
    "ENorm, c = 0.8": (79.88,),
    "ENorm, c = 1.2": (89.31,),
    "ENorm, adaptive": (89.28,),
    "ENorm + BN, c = 1": (91.85, 91.35),
    "ENorm + BN, c = 0.8": (90.95,),
    "ENorm + BN, c = 1.2": (90.89,),
    "ENorm + BN, adaptive": (90.79,),
}
"""tab:conv_a: test accuracy of CIFAR-10 fully convolutional under uniform and adaptive scaling."""

IMAGENET_BATCHES = (32, 64, 128, 256)
IMAGENET = {
    "Baseline": (66.20, 68.60, 69.20, 69.58),
    "BN": (68.01, 69.38, 70.83, 71.37),
    "GN": (68.94, 68.90, 70.69, 70.64),
    "ENorm": (69.70, 70.10, 71.03, 71.14),
}
"""tab:imagenet: test accuracy of ResNet-18, by batch size."""
