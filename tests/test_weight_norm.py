"""Laws of weight normalisation's data-dependent initialisation."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from equinorm.errors import ArgumentError
from equinorm.experiments.weight_norm import initialize_
from equinorm.models import cifar10_fc, cifar_nv, mnist_autoencoder, resnet18, resnet18c

MODELS = {
    "mnist_autoencoder": (mnist_autoencoder, {}, (784,)),
    "cifar10_fc": (cifar10_fc, {"depth": 21}, (3, 32, 32)),
    "cifar_nv": (cifar_nv, {}, (3, 28, 28)),
    "cifar_nv with biases": (cifar_nv, {"bias": True}, (3, 28, 28)),
    "resnet18c": (resnet18c, {"bias": True, "num_classes": 10}, (3, 32, 32)),
    "resnet18": (resnet18, {"num_classes": 10}, (3, 32, 32)),
}


def normalised(model: nn.Module) -> dict[str, nn.Module]:
    return {name: m for name, m in model.named_modules() if parametrize.is_parametrized(m)}


def pre_activations(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    """What every weight-normalised layer gives in a forward pass, as channels × everything else."""
    found = {}

    def record(name: str):
        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            found[name] = output.detach().transpose(0, 1).flatten(1)

        return hook

    handles = [module.register_forward_hook(record(name)) for name, module in normalised(model).items()]
    model(batch)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("norm", ["wn", "wn+bn"])
@pytest.mark.parametrize("name", MODELS)
def test_pre_activations_have_unit_variance_and_with_biases_zero_mean(name: str, norm: str) -> None:
    build, options, shape = MODELS[name]
    torch.manual_seed(0)
    model = build(norm=norm, **options).double()
    batch = torch.rand(8, *shape, dtype=torch.float64) * 3 + 1
    directions = {n: m.parametrizations.weight.original1.clone() for n, m in normalised(model).items()}
    initialize_(model, batch)
    found = pre_activations(model, batch)
    assert found.keys() == directions.keys() and len(found) >= 8
    for layer, values in found.items():
        module = model.get_submodule(layer)
        deviation = (values.var(1, correction=0) - 1).abs().max()
        assert deviation < 1e-9, layer
        if module.bias is not None:
            assert values.mean(1).abs().max() < 1e-9, layer
        assert torch.equal(module.parametrizations.weight.original1, directions[layer])


def test_gain_and_bias_are_those_of_the_papers_formulas() -> None:
    """Salimans & Kingma, equations 5 and 6, written out for two layers: g = 1/σ[t], b = −μ[t]/σ[t]."""
    torch.manual_seed(0)
    model = nn.Sequential(weight_norm(nn.Linear(5, 4)), nn.ReLU(), weight_norm(nn.Linear(4, 3))).double()
    x = torch.randn(50, 5, dtype=torch.float64)
    initialize_(model, x)
    for layer in (model[0], model[2]):
        v = layer.parametrizations.weight.original1
        t = x @ (v / v.norm(dim=1, keepdim=True)).T
        mean, std = t.mean(0), t.std(0, correction=0)
        torch.testing.assert_close(layer.parametrizations.weight.original0.flatten(), 1 / std)
        torch.testing.assert_close(layer.bias, -mean / std)
        x = ((t - mean) / std).relu()


def test_batch_norms_are_in_training_mode_and_keep_their_running_statistics() -> None:
    model = cifar_nv(norm="wn+bn").eval()
    model.conv1_norm.train()
    flags = [module.training for module in model.modules()]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    batch = torch.randn(4, 3, 28, 28)
    initialize_(model, batch)
    assert [module.training for module in model.modules()] == flags
    assert buffers and all(torch.equal(buffers[name], buffer) for name, buffer in model.named_buffers())
    assert not any(m._forward_hooks for m in model.modules())
    values = pre_activations(model.train(), batch)
    assert all((v.var(1, correction=0) - 1).abs().max() < 1e-3 for v in values.values())


def test_a_second_initialisation_changes_nothing() -> None:
    torch.manual_seed(0)
    model, batch = mnist_autoencoder(norm="wn").double(), torch.randn(64, 784, dtype=torch.float64)
    initialize_(model, batch)
    once = copy.deepcopy(model.state_dict())
    initialize_(model, batch)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, once[key], rtol=1e-9, atol=1e-9)


def test_a_constant_channel_keeps_its_gain() -> None:
    model = nn.Sequential(weight_norm(nn.Linear(4, 3)), nn.ReLU(), weight_norm(nn.Linear(3, 2)))
    before = model[0].parametrizations.weight.original0.clone()
    initialize_(model, torch.full((6, 4), 0.3))
    assert torch.equal(model[0].parametrizations.weight.original0, before)
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert model[0](torch.full((6, 4), 0.3)).abs().max() < 1e-6


def test_a_channel_that_is_constant_but_for_rounding_keeps_its_gain() -> None:
    torch.manual_seed(0)
    layer = weight_norm(nn.Linear(2, 1))
    with torch.no_grad():
        layer.parametrizations.weight.original1.fill_(1)
    before = layer.parametrizations.weight.original0.clone()
    share = torch.rand(100, 1)
    batch = torch.cat([share, 1 - share], 1)
    assert 0 < layer(batch).std() < 1e-6
    initialize_(nn.Sequential(layer), batch)
    assert torch.equal(layer.parametrizations.weight.original0, before)


def test_a_shared_layer_is_initialised_at_its_first_use() -> None:
    torch.manual_seed(0)
    layer = weight_norm(nn.Linear(4, 4)).double()
    x = torch.randn(30, 4, dtype=torch.float64)
    initialize_(nn.Sequential(layer, nn.ReLU(), layer), x)
    torch.testing.assert_close(layer(x).var(0, correction=0), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("model", "batch", "message"),
    [
        (mnist_autoencoder(), torch.randn(4, 784), "no weight-normalised layer"),
        (mnist_autoencoder(norm="wn"), torch.randn(1, 784), "two examples"),
        (
            nn.Sequential(weight_norm(nn.ConvTranspose2d(2, 3, 3))),
            torch.randn(4, 2, 5, 5),
            "0 is a .*ConvTranspose2d",
        ),
    ],
)
def test_what_cannot_be_initialised_is_refused(model: nn.Module, batch: Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        initialize_(model, batch)


def test_after_an_error_nothing_has_changed() -> None:
    model = nn.Sequential(
        *(
            weight_norm(nn.Linear(4, 3)),
            nn.BatchNorm1d(3),
            nn.ReLU(),
            weight_norm(nn.Linear(4, 2)),
        )  # does not fit
    )
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="shapes"):
        initialize_(model, torch.randn(5, 4))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())
