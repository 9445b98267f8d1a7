"""What the tests of training share: small networks with their layout written by hand, data, and one training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPE = torch.float64


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)
    )  # fmt: skip


class TypeC(nn.Module):
    """Two residual blocks whose shortcuts are learnt convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 5, 3, padding=1)
        self.conv1, self.conv2 = nn.Conv2d(5, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.skip1 = nn.Conv2d(5, 6, 1, bias=False)
        self.conv3, self.conv4 = nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1)
        self.skip2 = nn.Conv2d(6, 4, 1)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.conv2(F.relu(self.conv1(x))) + self.skip1(x))
        x = F.relu(self.conv4(F.relu(self.conv3(x))) + self.skip2(x))
        return self.fc(x.mean((2, 3)))


@dataclass(frozen=True)
class Case:
    """A network, one input's shape, and (layer, produced group, consumed group) in the order of Algorithm 1."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    layers: tuple[tuple[str, str, str], ...]  # "" is the network's input or output

    def net(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.build().to(DTYPE)

    def data(self, seed: int = 0, batch: int = 16) -> tuple[Tensor, Tensor]:
        draws = torch.Generator().manual_seed(1000 + seed)
        x = torch.randn(batch, *self.shape, generator=draws, dtype=DTYPE)
        return x, torch.randint(0, 3, (batch,), generator=draws)


CASES = {
    "mlp": Case(mlp, (6,), (("0", "a", ""), ("2", "b", "a"), ("4", "", "b"))),
    "conv": Case(conv, (3, 8, 8), (("0", "a", ""), ("3", "b", "a"), ("6", "", "b"))),
    "type C": Case(
        TypeC,
        (3, 5, 5),
        (
            ("stem", "j0", ""), ("conv1", "h1", "j0"), ("conv2", "j1", "h1"), ("skip1", "j1", "j0"),
            ("conv3", "h2", "j1"), ("conv4", "j2", "h2"), ("skip2", "j2", "j1"), ("fc", "", "j2"),
        ),
    ),
}  # fmt: skip


def loss_of(net: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(net(data[0]), data[1])


def descend(net: nn.Module, optimizer: torch.optim.Optimizer, data: tuple[Tensor, Tensor]) -> float:
    """One step of the optimizer alone."""
    optimizer.zero_grad()
    loss = loss_of(net, data)
    loss.backward()
    optimizer.step()
    return loss.item()


def weights_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in net.named_parameters()}


def assert_close(a: Tensor, b: Tensor, tolerance: float, what: str = "") -> None:
    """Equal to within a tolerance relative to the largest entry of the tensor."""
    worst = (a - b).abs().max().item() if a.numel() else 0.0
    assert worst <= tolerance * max(b.abs().max().item(), 1e-30), f"{what}: {worst:.3g}"


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
