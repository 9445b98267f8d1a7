"""Where a model keeps its parameters, to notice one that has changed."""

from __future__ import annotations

from torch import Tensor, nn

from equinorm.errors import EquinormError
from equinorm.training.seen import Seen


class Layouts:
    """What a model looked like when ``owner`` (the class that asks) was made for it."""

    def __init__(self, model: nn.Module, owner: str) -> None:
        self._owner = owner
        self._places = [
            (module, key, parameter, f"{prefix}.{key}" if prefix else key)
            for prefix, module in model.named_modules()
            for key, parameter in module._parameters.items()
            if parameter is not None
        ]
        self._looks = [_look(parameter) for _, _, parameter, _ in self._places]
        self._children = [
            (prefix, module, dict(module._modules), len(module._parameters))
            for prefix, module in model.named_modules()
        ]

    def check(self) -> None:
        """Raise if a layer was replaced, reshaped, cast, moved, frozen or thawed since."""
        for prefix, module, children, parameters in self._children:
            if module._modules != children or len(module._parameters) != parameters:
                where = prefix or "the model itself"
                raise self._changed(f"a layer or parameter of {where} was replaced, added or removed")
        for (module, key, parameter, name), look in zip(self._places, self._looks, strict=True):
            if module._parameters.get(key) is not parameter or _look(parameter) != look:
                raise self._changed(f"parameter {name} was replaced, reshaped, cast, moved, frozen or thawed")

    def look(self, seen: Seen) -> None:
        """Note where the layers and parameters are kept."""
        for _, module, _, _ in self._children:
            for name in ("_modules", "_parameters"):
                mapping = seen.attribute(module, name)
                seen.size(mapping)
                for key in mapping:
                    seen.entry(mapping, key)
        seen.memory(parameter for _, _, parameter, _ in self._places)

    def _changed(self, what: str) -> EquinormError:
        return EquinormError(
            f"the model has changed since {self._owner} was made: {what}. Make a new {self._owner}"
        )


def _look(parameter: Tensor) -> tuple[object, ...]:
    return parameter.shape, parameter.stride(), parameter.dtype, parameter.device, parameter.requires_grad
