"""Laws of the paper's networks: shapes, sizes, initialisation, normalisations."""

import math

import pytest
import torch
from torch import nn

from equinorm.errors import ArgumentError
from equinorm.models import MODELS, cifar10_fc, cifar_nv, mnist_autoencoder, resnet18, resnet18c, resnet50c

OUTPUTS = {"mnist_autoencoder": 784, "cifar10_fc": 10, "cifar_nv": 10}


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("norm", ["none", "bn", "gn", "wn", "wn+bn"])
@pytest.mark.parametrize("name", ["mnist_autoencoder", "cifar10_fc", "cifar_nv", "resnet18c", "resnet18"])
def test_every_network_runs_under_every_normalisation(name: str, norm: str) -> None:
    build, shape = MODELS[name]
    model = build(norm=norm)
    shape = (2, 3, 64, 64) if name.startswith("resnet") else (2, *shape[1:])
    out = model(torch.randn(shape))
    assert out.shape == (2, OUTPUTS.get(name, 1000)) and out.isfinite().all()
    kinds = {type(m) for m in model.modules()}
    assert any(issubclass(kind, nn.modules.batchnorm._BatchNorm) for kind in kinds) == norm.endswith("bn")
    assert (nn.GroupNorm in kinds) == (norm == "gn")
    assert any("parametrizations" in key for key in model.state_dict()) == norm.startswith("wn")


SIZES = {
    # 784·1000 + 1000·500 + 500·250 + 250·30, twice, plus the biases
    "mnist_autoencoder": 2 * (784_000 + 500_000 + 125_000 + 7_500)
    + (1000 + 500 + 250 + 30)
    + (250 + 500 + 1000 + 784),
    "cifar10_fc": 3072 * 500 + 500 + 5 * (500 * 500 + 500) + 500 * 10 + 10,
    # convolutions without bias, classifier with
    "cifar_nv": 9 * (3 * 128 + 2 * 128**2 + 128 * 256 + 2 * 256**2 + 256 * 320) + 320 * 320 + 320 * 10 + 10,
    # type B: torchvision's 11,689,512 less its 9,600 BN parameters; type C adds the stride-1 shortcuts
    "resnet18": 11_689_512 - 9_600,
    "resnet18c": 11_689_512 - 9_600 + 2 * 64**2 + 128**2 + 256**2 + 512**2,
    # the paper's Table 1 has 30 million for ResNet-50; type B gives 25.5, type C 40.1
    "resnet50": 25_557_032 - 53_120,
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    assert parameters(MODELS[name][0]()) == SIZES[name]


@pytest.mark.parametrize(("name", "size"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_type_b_with_batch_norm_has_the_size_of_torchvisions(name: str, size: int) -> None:
    assert parameters(MODELS[name][0](norm="bn")) == size


def test_type_c_sizes_are_those_of_table_1() -> None:
    assert round(parameters(resnet18c()) / 1e6) == 12
    assert round(parameters(resnet50c()) / 1e6, 1) == 40.1


def test_he_initialisation() -> None:
    for model in (mnist_autoencoder(), cifar_nv()):
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and weight.numel() > 5000:
                variance = 2 / (weight.numel() / weight.shape[0])
                assert math.isclose(weight.var().item(), variance, rel_tol=0.1), name
            elif weight.ndim == 1:
                assert (weight == 0).all(), name


def test_weight_normalisation_starts_from_he_s_weights() -> None:
    torch.manual_seed(0)
    plain = cifar_nv()
    torch.manual_seed(0)
    polar = cifar_nv(norm="wn")
    for a, b in zip(plain, polar, strict=True):
        if isinstance(a, nn.Conv2d | nn.Linear):
            torch.testing.assert_close(a.weight, b.weight)


GROUPS = {
    "mnist_autoencoder": (5, 10, 20, 50),
    "cifar10_fc": (5, 10, 20, 50),
    "cifar_nv": (4, 8, 16, 32, 64),
    "resnet18c": (32,),
    "resnet18": (32,),
}
"""Those that the paper cross-validates, or uses."""


@pytest.mark.parametrize("name", GROUPS)
def test_the_papers_group_counts_fit_or_become_the_greatest_common_divisor(name: str) -> None:
    for groups in GROUPS[name]:
        norms = [
            m for m in MODELS[name][0](norm="gn", groups=groups).modules() if isinstance(m, nn.GroupNorm)
        ]
        assert norms
        for norm in norms:
            uneven = (groups, norm.num_channels) == (20, 250)  # the paper's auto-encoder
            assert norm.num_groups == (10 if uneven else groups)


def test_depth_is_the_number_of_square_layers() -> None:
    for depth in (0, 1, 11):
        square = [p for p in cifar10_fc(depth).parameters() if p.shape == (500, 500)]
        assert len(square) == depth


def test_every_shortcut_of_type_c_is_learnt_and_of_type_b_only_where_the_shape_changes() -> None:
    def learnt(model: nn.Module) -> int:
        return sum("shortcut" in name for name, _ in model.named_parameters())

    assert learnt(resnet18c()) == 8
    assert learnt(resnet18()) == 3


@pytest.mark.parametrize("norm", ["none", "bn", "wn"])
def test_identity_shortcuts_start_as_the_identity(norm: str) -> None:
    model = resnet18c(norm=norm, shortcut_init="identity").eval()
    for name, shortcut in model.named_modules():
        if name.endswith("shortcut"):
            x = torch.rand(1, shortcut[0].in_channels, 4, 4)
            stride = shortcut[0].stride[0]
            copies = shortcut[0].out_channels // x.shape[1]
            torch.testing.assert_close(shortcut[0](x), x[:, :, ::stride, ::stride].repeat(1, copies, 1, 1))


def test_the_last_batch_norm_follows_the_fc_layer() -> None:
    assert [name for name, _ in cifar_nv(final_bn=True).named_children()][-2:] == ["fc", "final_bn"]
    assert not any(isinstance(m, nn.BatchNorm1d) for m in resnet18c(norm="bn").modules())
    assert isinstance(resnet18c(final_bn=True)[-1], nn.BatchNorm1d)


@pytest.mark.parametrize(
    ("build", "options", "word"),
    [
        (cifar_nv, {"norm": "layer"}, "norm="),
        (cifar_nv, {"norm": "gn", "groups": 7}, "groups=7 does not divide a layer of 128"),
        (cifar_nv, {"norm": "gn", "groups": 0}, "groups=0"),
        (cifar10_fc, {"depth": -1}, "depth=-1"),
        (resnet18c, {"shortcut_init": "zero"}, "shortcut_init="),
    ],
)
def test_bad_options_are_named(build, options, word) -> None:
    with pytest.raises(ArgumentError, match=word):
        build(**options)
