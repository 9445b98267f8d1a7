"""Laws of Path-SGD: gamma is a sum over paths, and a step commutes with every rescaling."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import equinorm
from equinorm.errors import EquinormError
from equinorm.experiments.path_sgd import PathScale
from equinorm.models import cifar10_fc, cifar_nv, mnist_autoencoder, resnet18c

Unit = tuple[int, ...]
Weight = tuple[str, tuple[int, ...]] | float
"""A parameter's entry, or a constant (already a path's factor, not to be squared)."""


@dataclass(frozen=True)
class Layer:
    """A layer as edges: for every output unit, the (input unit or None for the constant one, weight) that feed it."""

    feeds: dict[Unit, list[tuple[Unit | None, Weight]]]


def linear(name: str, inputs: list[Unit], outputs: int) -> Layer:
    return Layer(
        {
            (o,): [(None, (f"{name}.bias", (o,)))]
            + [(unit, (f"{name}.weight", (o, i))) for i, unit in enumerate(inputs)]
            for o in range(outputs)
        }
    )


def conv(
    name: str, inputs: int, outputs: int, kernel: int, padding: int, size: int, stride: int = 1
) -> Layer:
    feeds = {}
    width = (size + 2 * padding - kernel) // stride + 1
    for o, y, x in itertools.product(range(outputs), range(width), range(width)):
        edges: list[tuple[Unit | None, Weight]] = [(None, (f"{name}.bias", (o,)))]
        for i, dy, dx in itertools.product(range(inputs), range(kernel), range(kernel)):
            place = (stride * y + dy - padding, stride * x + dx - padding)
            if min(place) >= 0 and max(place) < size:
                edges.append(((i, *place), (f"{name}.weight", (o, i, dy, dx))))
        feeds[o, y, x] = edges
    return Layer(feeds)


def pool(channels: int, kernel: int, stride: int, padding: int, size: int) -> Layer:
    """Every entry of a window has the same share."""
    feeds = {}
    width = (size + 2 * padding - kernel) // stride + 1
    for c, y, x in itertools.product(range(channels), range(width), range(width)):
        rows = [r for r in range(stride * y - padding, stride * y - padding + kernel) if 0 <= r < size]
        columns = [r for r in range(stride * x - padding, stride * x - padding + kernel) if 0 <= r < size]
        share = 1 / (len(rows) * len(columns))
        feeds[c, y, x] = [((c, r, s), share) for r in rows for s in columns]
    return Layer(feeds)


def add(*layers: Layer) -> Layer:
    """Layers with the same inputs whose outputs are added."""
    return Layer({unit: [edge for layer in layers for edge in layer.feeds[unit]] for unit in layers[0].feeds})


def identity(units: list[Unit]) -> Layer:
    return Layer({unit: [(unit, 1.0)] for unit in units})


def paths(layers: list[Layer], unit: Unit | None) -> Iterator[list[Weight]]:
    """Every path from an input, or from a constant unit, to a unit of the last layer, as its list of weights."""
    if not layers or unit is None:
        yield []
        return
    for source, weight in layers[-1].feeds[unit]:
        for path in paths(layers[:-1], source):
            yield [*path, weight]


def gammas_by_enumeration(model: nn.Module, layers: list[Layer]) -> dict[str, Tensor]:
    squared = {name: p.detach().square() for name, p in model.named_parameters()}
    found = {name: torch.zeros_like(p) for name, p in squared.items()}
    for unit in layers[-1].feeds:
        for path in paths(layers, unit):
            factors = [w if isinstance(w, float) else squared[w[0]][w[1]].item() for w in path]
            for k, weight in enumerate(path):
                if not isinstance(weight, float):
                    found[weight[0]][weight[1]] += math.prod(factors[:k] + factors[k + 1 :])
    return found


def grid(channels: int, size: int) -> list[Unit]:
    return list(itertools.product(range(channels), range(size), range(size)))


class Residual(nn.Module):
    """Identity and learnt shortcuts."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 2, 3, padding=1)
        self.b = nn.Conv2d(2, 2, 3, padding=1)
        self.c = nn.Conv2d(2, 2, 1)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = (self.a(x) + x).relu()
        return self.fc((self.b(y) + self.c(y)).relu_().flatten(1))


def fully_connected() -> tuple[nn.Module, tuple[int, ...], list[Layer]]:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    layers = [
        linear("0", [(k,) for k in range(3)], 4),
        linear("2", [(k,) for k in range(4)], 3),
        linear("4", [(k,) for k in range(3)], 2),
    ]
    return model, (3,), layers


def convolutional(pooling: nn.Module) -> tuple[nn.Module, tuple[int, ...], list[Layer]]:
    model = nn.Sequential(
        *(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), pooling),
        *(nn.Conv2d(2, 3, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2)),
    )
    kernel, stride, padding = {3: (3, 2, 1), 2: (2, 2, 0)}[pooling.kernel_size]
    layers = [
        conv("0", 2, 2, 3, 1, 4),
        pool(2, kernel, stride, padding, 4),
        conv("3", 2, 3, 2, 0, 2, stride=2),
        linear("6", grid(3, 1), 2),
    ]
    return model, (2, 4, 4), layers


def residual() -> tuple[nn.Module, tuple[int, ...], list[Layer]]:
    layers = [
        add(conv("a", 2, 2, 3, 1, 2), identity(grid(2, 2))),
        add(conv("b", 2, 2, 3, 1, 2), conv("c", 2, 2, 1, 0, 2)),
        linear("fc", grid(2, 2), 2),
    ]
    return Residual(), (2, 2, 2), layers


SMALL: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...], list[Layer]]]] = {
    "fully connected": fully_connected,
    "max pooling": lambda: convolutional(nn.MaxPool2d(2)),
    "overlapping max pooling with padding": lambda: convolutional(nn.MaxPool2d(3, 2, 1)),
    "average pooling": lambda: convolutional(nn.AvgPool2d(2)),
    "residual": residual,
}


def random_net(name: str) -> tuple[nn.Module, Tensor, list[Layer]]:
    torch.manual_seed(0)
    model, shape, layers = SMALL[name]()
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model, torch.randn(5, *shape, dtype=torch.float64), layers


@pytest.mark.parametrize("name", SMALL)
def test_gamma_is_the_sum_over_all_paths_through_the_weight(name: str) -> None:
    model, x, layers = random_net(name)
    found, expected = PathScale(model, x).factors(), gammas_by_enumeration(model, layers)
    assert found.keys() == expected.keys() == dict(model.named_parameters()).keys()
    for key, gamma in expected.items():
        torch.testing.assert_close(found[key], gamma, rtol=1e-10, atol=0)


def rescale_(model: nn.Module) -> None:
    """Multiply the channels of every hidden layer of a chain by random scales, and divide them out behind it."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        for layer, following in itertools.pairwise(layers):
            scale = torch.rand(layer.weight.shape[0], dtype=torch.float64) * 4 + 0.3
            layer.weight.mul_(scale.view(-1, *[1] * (layer.weight.dim() - 1)))
            if layer.bias is not None:
                layer.bias.mul_(scale)
            repeats = following.weight.shape[1] // len(scale)  # the pixels of a channel, after a flatten
            divisor = scale.repeat_interleave(repeats)
            following.weight.div_(divisor.view(1, -1, *[1] * (following.weight.dim() - 2)))


def balance_(x: Tensor) -> Callable[[nn.Module], None]:
    def rescale(model: nn.Module) -> None:
        equinorm.balance(model, x)

    return rescale


def train(model: nn.Module, x: Tensor, lr: float, path: bool = True, steps: int = 2) -> Tensor:
    """The outputs after some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scale = PathScale(model, x)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if path:
            scale.scale_gradients()
        optimizer.step()
    return model(x).detach()


@pytest.mark.parametrize(
    "name", ["fully connected", "max pooling", "overlapping max pooling with padding", "residual"]
)
def test_steps_commute_with_rescaling(name: str) -> None:
    model, x, _ = random_net(name)
    rescaled = copy.deepcopy(model)
    (balance_(x) if name == "residual" else rescale_)(rescaled)
    start = model(x).detach()
    torch.testing.assert_close(rescaled(x).detach(), start, rtol=1e-9, atol=1e-9)
    plain = [train(copy.deepcopy(each), x, 1e-3, path=False) for each in (model, rescaled)]
    assert (plain[0] - plain[1]).abs().max() > 1e-4 * (plain[0] - start).abs().max()  # SGD's do not
    moved, moved_rescaled = (train(each, x, 0.1) for each in (model, rescaled))
    assert (moved - start).abs().max() > 1e-4
    torch.testing.assert_close(moved_rescaled, moved, rtol=1e-8, atol=1e-8)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "mnist_autoencoder": (mnist_autoencoder, (784,), True),
    "cifar10_fc": (lambda: cifar10_fc(3), (3, 32, 32), True),
    "cifar_nv": (cifar_nv, (3, 28, 28), True),
    "cifar_nv with biases": (lambda: cifar_nv(bias=True), (3, 28, 28), True),
    "resnet18c": (lambda: resnet18c(num_classes=10), (3, 32, 32), False),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_papers_networks_have_a_positive_gamma_for_every_live_weight_and_commute(name: str) -> None:
    build, shape, chain = NETWORKS[name]
    torch.manual_seed(0)
    model, x = build().double(), torch.randn(2, *shape, dtype=torch.float64)
    gammas = PathScale(model, x).factors()
    model(x).square().sum().backward()
    for key, parameter in model.named_parameters():
        assert gammas[key].shape == parameter.shape
        assert (gammas[key] > 0)[parameter.grad != 0].all()
    rescaled = copy.deepcopy(model)
    (rescale_ if chain else balance_(x))(rescaled)
    torch.testing.assert_close(
        train(rescaled, x, 0.1, steps=1), train(model, x, 0.1, steps=1), rtol=1e-7, atol=1e-7
    )


def test_dead_edges_get_no_update_and_no_nan() -> None:
    model, x, _ = random_net("fully connected")
    with torch.no_grad():
        model[2].weight[:, 1] = 0  # unit 1 of the first layer has no consumers
        model[0].weight[2] = 0  # unit 2 has no producers
        model[0].bias[2] = 0
    before = copy.deepcopy(model.state_dict())
    gammas = PathScale(model, x).factors()
    assert (gammas["0.weight"][1] == 0).all() and (gammas["2.weight"][:, 2] == 0).all()
    train(model, x, 0.1, steps=1)
    after = model.state_dict()
    assert all(value.isfinite().all() for value in after.values())
    assert torch.equal(after["0.weight"][1], before["0.weight"][1])
    assert torch.equal(after["2.weight"][:, 2], before["2.weight"][:, 2])
    assert not torch.equal(after["0.weight"][0], before["0.weight"][0])


def test_the_model_stays_as_it_is() -> None:
    model, x, _ = random_net("max pooling")
    model[0].bias.requires_grad_(False)
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    flags = [module.training for module in model.modules()]
    scale = PathScale(model, x)
    scale.factors()
    scale.scale_gradients()  # no gradients yet
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [module.training for module in model.modules()] == flags
    assert not model[0].bias.requires_grad
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_factors_follow_the_weights() -> None:
    model, x, _ = random_net("fully connected")
    scale = PathScale(model, x)
    before = scale.factors()
    with torch.no_grad():
        model[4].weight.mul_(3)
    after = scale.factors()
    torch.testing.assert_close(after["0.weight"], 9 * before["0.weight"])
    torch.testing.assert_close(after["4.weight"], before["4.weight"])


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.fc(x).relu())


class Shifted(nn.Module):
    def __init__(self, shift: Tensor | float) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("shift", shift) if isinstance(shift, Tensor) else setattr(self, "shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + self.shift


IMAGE = torch.randn(2, 3, 8, 8)
REFUSED = {
    "batch norm": (cifar_nv(norm="bn"), torch.randn(2, 3, 28, 28), "batch_norm in conv1_norm"),
    "final batch norm": (cifar_nv(final_bn=True), torch.randn(2, 3, 28, 28), "batch_norm in final_bn"),
    "group norm": (mnist_autoencoder(norm="gn"), torch.randn(2, 784), "group_norm in fc1_norm"),
    "weight norm": (mnist_autoencoder(norm="wn"), torch.randn(2, 784), "_weight_norm in fc1"),
    "attention": (nn.TransformerEncoderLayer(8, 2), torch.randn(2, 3, 8), "self_attn"),
    "sigmoid": (nn.Sequential(nn.Linear(3, 3), nn.Sigmoid()), torch.randn(2, 3), "sigmoid in 1"),
    "leaky": (nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU()), torch.randn(2, 3), "leaky_relu in 1"),
    "shared layer": (Shared(), torch.randn(2, 3), "fc.* more than once"),
    "added buffer": (Shifted(torch.ones(3)), torch.randn(2, 3), "buffer or constant"),
    "added number": (Shifted(1.0), torch.randn(2, 3), "add has no path norm"),
    "dilated pool": (
        nn.Sequential(nn.Conv2d(3, 2, 3), nn.MaxPool2d(2, dilation=2)),
        IMAGE,
        "max_pool2d in 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_path_norm_is_refused(name: str) -> None:
    model, x, message = REFUSED[name]
    with pytest.raises(EquinormError, match=message) as caught:
        PathScale(model, x)
    assert "Path-SGD" in str(caught.value) and "\n" not in str(caught.value)
