"""``python benchmarks …`` is ``equinorm bench … --output benchmarks/results`` where torchvision does not fit torch.

torchvision's wheels do not import beside a CPU-only torch; tests/vision.py declares what they miss.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

import vision  # noqa: E402, F401 (before torchvision)

from equinorm.cli import run  # noqa: E402

sys.exit(run(["bench", "--output", str(HERE / "results"), *sys.argv[1:]]))
