"""Weights in files: read without running code, match against a model, write all or nothing.

Weights keep the precision of the file. What surrounds them in a training checkpoint (an optimizer's state, an
epoch) is not carried over: it would no longer fit rescaled weights.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from equinorm.errors import ArgumentError, EquinormError

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Where training scripts put the weights inside a larger dictionary."""
PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHOWN = 3


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The tensors of one file, and the metadata that a safetensors file carries."""

    path: Path
    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)


def read(path: str | Path) -> Checkpoint:
    """Read weights from ``.safetensors`` or PyTorch's format; pickled code is refused, not run."""
    path = Path(path)
    suffix = check_suffix(path)
    if not path.is_file():
        raise ArgumentError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
    return _read_safetensors(path) if suffix == ".safetensors" else _read_torch(path)


def check_suffix(path: Path) -> str:
    """The suffix of a path that can be read and written."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ArgumentError(f"{path}: unknown kind of file; weights are {', '.join(SUFFIXES)}")
    return suffix


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError:
        raise EquinormError('safetensors files need an extra: pip install "equinorm[cli]"') from None
    return safetensors


def _read_safetensors(path: Path) -> Checkpoint:
    library = _safetensors()
    try:
        with library.safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return Checkpoint(path, tensors, file.metadata() or {})
    except (library.SafetensorError, OSError, ValueError) as error:
        raise ArgumentError(f"{path}: not a readable safetensors file ({_first_line(error)})") from error


def _read_torch(path: Path) -> Checkpoint:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ArgumentError(
            f"{path}: not a file of plain tensors: it is damaged or holds pickled code, which equinorm does "
            "not run; save model.state_dict() alone, or use safetensors"
        ) from error
    except Exception as error:  # torch.load raises nearly anything on damaged bytes
        raise ArgumentError(f"{path}: not a readable PyTorch file ({_first_line(error)})") from error
    return Checkpoint(path, _state_dict(content, path))


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content:
        raise ArgumentError(f"{path}: holds no state_dict, a mapping of names to tensors")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ArgumentError(f"{path}: entry {name!r} is not a tensor but a {type(value).__name__}")
    return dict(content)


def load_into(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Copy the weights into the model, which takes on their precision. The keys must match exactly."""
    state = model.state_dict()
    _check_keys(model, state, checkpoint)
    for name, tensor in checkpoint.tensors.items():
        if state[name].is_floating_point() and tensor.dtype not in PRECISIONS:
            raise ArgumentError(
                f"{checkpoint.path}: {name} is {tensor.dtype}; convert it to a float of 16 bits or more"
            )
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        source = checkpoint.tensors.get(name)
        if source is not None and tensor.is_floating_point():
            tensor.data = tensor.data.to(source.dtype)  # through .data, so that tied parameters stay one
    model.load_state_dict(checkpoint.tensors, strict=False)


def _check_keys(model: nn.Module, state: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    given = checkpoint.tensors
    tied = _tied_names(model)
    missing = [name for name in state if name not in given and not (tied.get(name, set()) & given.keys())]
    unexpected = [name for name in given if name not in state]
    shapes = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(state[name].shape)}"
        for name in given
        if name in state and given[name].shape != state[name].shape
    ]
    problems = [
        f"{len(names)} {what} ({_some(names)})"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if names
    ]
    if problems:
        raise ArgumentError(f"{checkpoint.path}: the weights do not fit the model: {'; '.join(problems)}")


def _tied_names(model: nn.Module) -> dict[str, set[str]]:
    """Every name of a shared parameter → all its names; safetensors files hold only one of them."""
    names: dict[Tensor, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, set()).add(name)
    return {name: group for group in names.values() for name in group if len(group) > 1}


def check_output(path: str | Path, force: bool = False) -> Path:
    """Refuse an output path that could not be written, before the work that leads to it."""
    path = Path(path)
    if path.is_dir():
        raise ArgumentError(f"{path}: is a folder")
    if path.exists() and not force:
        raise ArgumentError(f"{path}: exists; --force overwrites it")
    if not path.parent.is_dir():
        raise ArgumentError(f"{path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ArgumentError(f"{path}: no permission to write in {path.parent}")
    return path


def write(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], force: bool = False
) -> None:
    """Write weights in the format of the suffix; the old file stays until the new one is complete."""
    path = check_output(path, force)
    if check_suffix(path) == ".safetensors":
        save, content, kept = _safetensors().torch.save_file, _unshared(tensors), dict(metadata) or None
        write_atomically(path, lambda temporary: save(content, temporary, metadata=kept))
    else:
        write_atomically(path, lambda temporary: torch.save(dict(tensors), temporary))


def write_atomically(path: Path, write_to: Callable[[Path], object]) -> None:
    """Write through a temporary file in the same folder, synced before it takes the place of ``path``."""
    target = Path(os.path.realpath(path))
    temporary = _temporary(target)
    try:
        write_to(temporary)
        temporary.chmod(_mode(target))
        _sync(temporary)
        os.replace(temporary, target)
    except Exception as error:  # torch and safetensors report a full disk with types of their own
        raise EquinormError(f"{path}: cannot be written ({_first_line(error)})") from error
    finally:
        temporary.unlink(missing_ok=True)
    _sync(target.parent)


def _temporary(target: Path) -> Path:
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-", suffix=target.suffix)
    except OSError as error:
        raise EquinormError(f"{target}: cannot be written ({error.strerror})") from error
    os.close(handle)
    return Path(name)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mode(target: Path) -> int:
    """The old file's permissions, else those that a new file gets (mkstemp's are private)."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies where tensors share memory, which safetensors refuses."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        out[name] = tensor.clone() if storage in seen else tensor
        out[name] = out[name].contiguous()
        seen.add(storage)
    return out


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
