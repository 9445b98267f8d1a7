"""Import this before torchvision: its schemas are declared here when only torch is CPU-built.

torchvision's wheels are built against CUDA's torch; on a CPU-only torch its compiled operators do not
load, and ``import torchvision`` fails while it registers fake kernels for operators that nobody declared.
No classification model uses them, so declaring their schemas is enough.
"""

import ctypes
import importlib.util
from pathlib import Path

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "_cuda_version() -> int",
)


def _operators_load() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    try:
        for library in Path(spec.origin).parent.glob("_C*"):
            ctypes.CDLL(str(library))
    except OSError:
        return False
    return hasattr(torch.ops.torchvision, "nms")


LIBRARY = None
if not _operators_load():
    LIBRARY = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        LIBRARY.define(schema)
