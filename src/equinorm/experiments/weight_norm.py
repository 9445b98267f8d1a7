"""The data-dependent initialisation of weight normalisation (Salimans & Kingma 2016, section 3).

The paper's "WN + BN" uses it (section "MNIST auto-encoder": "a greedy layer-wise initialization as described in the
original paper"). One batch runs through the network; each weight-normalised layer, in the order in which the batch
reaches them, gets the gain g ← g/σ and the bias b ← −μ/σ that give its pre-activations zero mean and unit variance
over the batch and all positions, channel by channel, and hands those on to the next layers.

Conventions, ours:

* A layer without a bias (the convolutions of ``equinorm.models``) gets its gain only: unit variance, and the mean that
  its weights give it.
* With batch norms behind the layers (``wn+bn``), the batch runs through them in training mode: each layer sees
  what it will see in the first training step. Their running statistics stay as they were.
* A channel whose pre-activation is the same for every example has no scale: it keeps its gain.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from equinorm.attributes import attributes_kept
from equinorm.errors import ArgumentError

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


@torch.no_grad()
def initialize_(model: nn.Module, batch: Tensor) -> None:
    """Initialise every weight-normalised layer of a model in place; after an error nothing has changed."""
    layers = _weight_normalised(model)
    if len(batch) < 2:
        raise ArgumentError("weight norm: the initialisation needs a batch of two examples or more")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    handles = [layer.register_forward_hook(partial(_initialize_layer, set())) for layer in layers]
    try:
        with attributes_kept(model):
            model.train()(batch)
    except BaseException:
        model.load_state_dict(state)
        raise
    finally:
        for handle in handles:
            handle.remove()
    for name, buffer in model.named_buffers():
        buffer.copy_(state[name])


def _weight_normalised(model: nn.Module) -> list[Layer]:
    """The layers that ``torch.nn.utils.parametrizations.weight_norm`` was applied to."""
    layers = []
    for name, module in model.named_modules():
        steps = module.parametrizations["weight"] if parametrize.is_parametrized(module, "weight") else ()
        if not any(type(step).__name__ == "_WeightNorm" for step in steps):  # torch's own name, and private
            continue
        if not isinstance(module, Layer):
            raise ArgumentError(
                f"weight norm: {name} is a {type(module).__name__}, not linear or a convolution"
            )
        layers.append(module)
    if not layers:
        raise ArgumentError("weight norm: the model has no weight-normalised layer (norm='wn' or 'wn+bn')")
    return layers


def _initialize_layer(
    done: set[nn.Module], layer: Layer, _: tuple[Tensor, ...], output: Tensor
) -> Tensor | None:
    """A forward hook: gain and bias from the layer's pre-activations, which it hands on normalised."""
    if layer in done:
        return None
    done.add(layer)
    channel = output.dim() - 1 if isinstance(layer, nn.Linear) else 1
    others = [dim for dim in range(output.dim()) if dim != channel]
    shape = [-1 if dim == channel else 1 for dim in range(output.dim())]
    linear = output if layer.bias is None else output - layer.bias.view(shape)
    variance, mean = torch.var_mean(linear, others, correction=0, keepdim=True)
    # Rounding gives a constant channel a tiny variance; dividing by its root would blow it up.
    floor = 10 * torch.finfo(output.dtype).eps * linear.abs().amax(others, keepdim=True)
    sigma = torch.where(variance.sqrt() > floor, variance.sqrt(), 1.0)
    gain = layer.get_parameter("parametrizations.weight.original0")
    gain.div_(sigma.view(-1, *[1] * (gain.dim() - 1)))
    if layer.bias is None:
        return linear / sigma
    layer.bias.copy_((-mean / sigma).flatten())
    return (linear - mean) / sigma
