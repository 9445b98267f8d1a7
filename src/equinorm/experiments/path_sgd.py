"""Path-SGD (Neyshabur, Salakhutdinov & Srebro 2015), the paper's baseline "path-sgd".

The path norm of a ReLU network is the sum, over all paths from an input to an output, of the product of the squared
weights on the path; its curvature along a weight w is gamma(w), the same sum over the paths through w, with w left
out of the product. Path-SGD divides the gradient by it: w ← w − lr / gamma(w) · ∂ℓ/∂w. A rescaling that multiplies w
by s divides its gradient by s and its gamma by s², so the update is multiplied by s as the weight is: Path-SGD does
not see rescalings.

Summed over the outputs, the network with squared weights on a vector of ones is the path norm, and gamma is its
derivative with respect to w²: one forward and one backward pass, on one example of ones.

Conventions beyond the original's fully-connected networks, all ours and all invariant under rescaling:

* a ReLU is always open (sums of squares are positive);
* a bias is an edge from a constant unit of value one;
* a convolution's weight stands for one edge at each position (zero padding is no unit), and its gamma is the sum of
  theirs; no path uses two of them;
* all entries of a max pooling's window lie on paths, each with an equal share of the window, so that no edge that has
  a gradient ever has gamma = 0; average pooling averages, as it is;
* where paths join (additions, outputs), they are summed, without any factor;
* gamma = 0 means that no path goes through the weight: its gradient, then zero too, is set to zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from equinorm.errors import EquinormError
from equinorm.trace import Trace, trace


def _window_mean(average: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Max pooling (never dilated: ``_is_supported``) as a mean over each window's entries, without padding."""

    def pool(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Tensor:
        return average(x, kernel, stride or kernel, padding, ceil_mode, count_include_pad=False)

    return pool


AS_IT_IS = {
    *("linear", "conv1d", "conv2d", "conv3d"),
    *("relu", "relu_", "add", "add_", "flatten", "view", "reshape", "mean"),
    *("avg_pool1d", "avg_pool2d", "avg_pool3d"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
}
REPLACED = {
    "max_pool1d": _window_mean(functional.avg_pool1d),
    "max_pool2d": _window_mean(functional.avg_pool2d),
    "max_pool3d": _window_mean(functional.avg_pool3d),
}
SUPPORTED = "linear and convolutional layers, ReLU, max and average pooling, flatten and additions"


class PathScale:
    """The factors gamma of a network's weights, and the division of its gradients by them.

    Of ``example``, the inputs of the network, only shape and dtype matter. The network stays as it is; whatever is not
    linear, ReLU, pooling, flatten or addition is refused.
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        traced = trace(model, example[:1])[0][0]
        _check(traced)
        self._network = _PathNetwork(traced.graph_module)
        placeholders = [node.name for node in traced.graph_module.graph.nodes if node.op == "placeholder"]
        self._arguments = [traced.parameters.get(placeholder) for placeholder in placeholders]
        self._ones = torch.ones_like(example[:1])
        self._parameters = {n: p for n, p in model.named_parameters() if n in self._arguments}

    def factors(self) -> dict[str, Tensor]:
        """gamma of every weight and bias, by name."""
        squared = {name: p.detach().square().requires_grad_() for name, p in self._parameters.items()}
        arguments = [self._ones if name is None else squared[name] for name in self._arguments]
        with torch.enable_grad():
            path_norm = torch.stack([output.sum() for output in self._network.run(*arguments)]).sum()
            gammas = torch.autograd.grad(path_norm, list(squared.values()), materialize_grads=True)
        return dict(zip(squared, gammas, strict=True))

    @torch.no_grad()
    def scale_gradients(self) -> None:
        """Divide every gradient by gamma, in place: call it before the optimizer's step."""
        for name, gamma in self.factors().items():
            gradient = self._parameters[name].grad
            if gradient is not None:
                gradient.copy_(torch.where(gamma > 0, gradient / gamma, 0))


class _PathNetwork(fx.Interpreter):
    """Runs the network's graph, with the conventions for max pooling."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().call_function(REPLACED.get(_operator(target), target), args, kwargs)


def _operator(target: Any) -> str:
    """The name of an ATen operator without namespace and overload; of another function, its own."""
    schema = getattr(target, "_schema", None)
    return (
        schema.name.removeprefix("aten::") if schema is not None else getattr(target, "__name__", str(target))
    )


def _check(traced: Trace) -> None:
    """Refuse what Path-SGD is not defined for, before anything is computed."""
    nodes = traced.graph_module.graph.nodes
    for node in nodes:
        if node.op == "call_function" and not _is_supported(node, traced.parameters):
            module = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()][-1:]
            raise EquinormError(
                f"Path-SGD: {_operator(node.target)}{f' in {module[0]}' if module and module[0] else ''} has no path "
                f"norm as it is used; supported are {SUPPORTED}"
            )
    for node in nodes:
        if node.op == "placeholder" and node.users and node.name in {*traced.buffers, *traced.constants}:
            raise EquinormError(f"Path-SGD: the buffer or constant {node.name} is not the weight of a path")
    uses = Counter(
        traced.parameters[node.name] for node in nodes if node.name in traced.parameters for _ in node.users
    )
    for name, count in uses.items():
        if count > 1:
            raise EquinormError(f"Path-SGD: {name} is used more than once, and a path may use it twice")


def _is_supported(node: fx.Node, parameters: Container[str]) -> bool:
    operator = _operator(node.target)
    if operator in ("add", "add_"):
        return len(node.args) == 2 and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args)
    if operator.startswith(("linear", "conv")):
        weights = [a for a in node.args[1:3] if isinstance(a, fx.Node)]
        return operator in AS_IT_IS and all(weight.name in parameters for weight in weights)
    if operator in REPLACED:
        dilation = node.args[4] if len(node.args) > 4 else 1
        return all(d == 1 for d in (dilation if isinstance(dilation, (list, tuple)) else [dilation]))
    return operator in AS_IT_IS
