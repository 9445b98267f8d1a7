"""The figures and tables that train, one row each: which runs, what ``quick`` shortens, the paper's numbers.

Ours, where the paper is silent: the depths p of the CIFAR-10 figure, 5 seeds on MNIST, 1 on ImageNet, the grid of
ENorm-Impl's λ, and which figures show which column.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from equinorm.experiments.reproduce import paper
from equinorm.experiments.reproduce.case import Case
from equinorm.experiments.reproduce.curves import AgainstDepth, AgainstEpochs
from equinorm.experiments.reproduce.experiment import Experiment
from equinorm.experiments.reproduce.protocol import Protocol, Quick, last_norm
from equinorm.experiments.reproduce.trained import find

METHODS = {
    "Baseline": "baseline",
    "BN": "bn",
    "GN": "gn",
    "WN + BN": "wn+bn",
    "Path-SGD": "path-sgd",
    "ENorm": "enorm",
    "ENorm + BN": "enorm+bn",
}
"""The paper's names → ours."""
SCALINGS = {"c = 1": 1.0, "c = 0.8": 0.8, "c = 1.2": 1.2, "adaptive": "adaptive"}
DEPTHS, QUICK_DEPTHS = tuple(range(3, 20, 2)), (3, 11, 19)
IMPLICIT_DEPTHS, QUICK_IMPLICIT_DEPTHS = (3, 7, 11, 15, 19), (3, 11)

MNIST_CASES = tuple(
    Case(label, label, method, paper=paper.MNIST.get(label, ())) for label, method in METHODS.items()
)
MNIST_QUICK = Quick(
    {"epochs": 6, "limit": 20_000},
    dict.fromkeys(METHODS.values(), 0.1) | {"baseline": 0.01, "enorm": 0.01},
    "the best of the paper's grid in a pilot of 5,000 images, 4 epochs and seed 0, on held-out images",
    seeds=2,
)
MNIST_ERROR = (
    "Average training error: squared, per pixel of normalised images, over the last epoch; lower is better."
)


def depth_cases(labels: Sequence[str], depths: Sequence[int]) -> tuple[Case, ...]:
    """Methods on the fully-connected network of several depths."""
    methods = {**METHODS, "ENorm-Impl": "enorm-impl"}
    return tuple(
        Case(f"{label}, p = {depth}", label, methods[label], {"depth": depth})
        for depth in depths
        for label in labels
    )


FC_QUICK = {"epochs": 8, "limit": 10_000}
FC_RATES = dict.fromkeys(METHODS.values(), 0.1) | {
    "baseline": 0.05,
    "gn": 0.05,
    "enorm": 0.01,
    "enorm-impl": 0.05,
}
FC_PILOT = "the best of the paper's grid in a pilot at p = 11 of 5,000 images, 3 epochs and seed 0, on held-out images"
FC_ACCURACY = "Test accuracy (top 1, %) after the last epoch; higher is better."
IMPLICIT = ("Baseline", "ENorm-Impl", "ENorm")

CONV_CASES = tuple(
    Case(label, label, METHODS[label], paper=numbers) for label, numbers in paper.CIFAR_CONV.items()
)
CONV_QUICK = Quick(
    {"epochs": 2, "limit": 1_200, "batch_size": 32},
    dict.fromkeys(METHODS.values(), 0.01),
    "the smallest of the paper's grid, for batches a quarter as large",
)
TWO_NUMBERS = (
    "For ENorm + BN with c = 1 the paper prints 91.35 in its table of methods and 91.85 in its table of scalings; "
    "both are shown."
)


def scaling_cases(numbers: dict[str, tuple[float, ...]]) -> tuple[Case, ...]:
    """ENorm with each asymmetric scaling, without and with BN."""
    return tuple(
        Case(
            f"{label}, {scaling}",
            scaling,
            METHODS[label],
            {"c": c},
            numbers.get(f"{label}, {scaling}", ()),
            panel,
        )
        for label, panel in (("ENorm", "without BN"), ("ENorm + BN", "with BN"))
        for scaling, c in SCALINGS.items()
    )


IMAGENET_QUICK = Quick({"epochs": 1, "limit": 512, "crop": 64}, {}, "")
IMAGENET_ACCURACY = "Test accuracy (top 1, %), median over the last 5 epochs; higher is better."


def imagenet_cases(batches: Sequence[int]) -> tuple[Case, ...]:
    """The paper's methods at several batch sizes."""
    return tuple(
        Case(f"{label}, B = {batch}", label, METHODS[label], {"batch_size": batch}, (numbers[column],))
        for label, numbers in paper.IMAGENET.items()
        for column, batch in enumerate(paper.IMAGENET_BATCHES)
        if batch in batches
    )


def _trained(name: str, title: str, source: str, claim: str, protocol: Protocol) -> Experiment:
    return Experiment(name, title, source, claim, partial(find, protocol), protocol.row.dataset)


EXPERIMENTS = (
    _trained(
        "fig-norm-training",
        "Norm of the weights while training",
        'appendix "Sanity checks", check 3',
        "ENorm-1, one cycle per step, leads to a lower energy of the network than plain SGD, consistently.",
        Protocol(
            recipe="cifar10-fc",
            cases=depth_cases(("Baseline", "ENorm"), (3,)),
            quick=Quick(
                {"epochs": 30, "limit": 20_000},
                {"baseline": 0.01, "enorm": 0.01},
                "0.01 for both, so that only ENorm differs",
                seeds=2,
            ),
            quantity="Σ‖W‖² after the last epoch; p = 3 layers of 500×500, one cycle per step, c = 1.2.",
            digits=1,
            measure=last_norm,
            drawings=(
                AgainstEpochs(
                    "norm-while-training",
                    "CIFAR-10 FC, p = 3: norm while training",
                    "After each epoch; mean ± standard error over the seeds.",
                    "norm",
                    "norm of the weights, Σ‖W‖²",
                ),
            ),
        ),
    ),
    _trained(
        "table-mnist",
        "MNIST auto-encoder",
        'table "MNIST auto-encoder results" (tab:mnist)',
        "ENorm alone is competitive with BN and GN; ENorm + BN outperforms all other methods.",
        Protocol(
            recipe="mnist-autoencoder",
            cases=MNIST_CASES,
            quick=MNIST_QUICK,
            quantity=MNIST_ERROR,
            digits=3,
            notes=(
                "ENorm is adaptive, ENorm + BN has c = 1. The paper does not show Path-SGD: poor performance.",
            ),
        ),
    ),
    _trained(
        "fig-mnist",
        "MNIST auto-encoder: training curves",
        'figure "MNIST auto-encoder results" (fig:mnist)',
        "ENorm alone is competitive with BN and GN; ENorm + BN outperforms all other methods.",
        Protocol(
            recipe="mnist-autoencoder",
            cases=MNIST_CASES,
            quick=MNIST_QUICK,
            quantity=MNIST_ERROR,
            digits=3,
            drawings=(
                AgainstEpochs(
                    "training-error",
                    "MNIST auto-encoder",
                    "Average training error of each epoch; mean ± standard error over the seeds.",
                    "train_metric",
                    "training error",
                ),
            ),
            notes=(
                "The same runs as table-mnist. The paper's figure shows neither the baseline nor Path-SGD.",
            ),
        ),
    ),
    _trained(
        "fig-cifar10-fc",
        "CIFAR-10 fully connected: accuracy against depth",
        'figure "CIFAR-10 fully-connected results" (fig:fc)',
        "ENorm alone outperforms BN and GN at any depth; ENorm + BN outperforms all other methods, by a good margin "
        "for more than p = 11 intermediate layers.",
        Protocol(
            recipe="cifar10-fc",
            cases=depth_cases(tuple(METHODS), DEPTHS),
            quick=Quick(FC_QUICK, FC_RATES, FC_PILOT, cases=depth_cases(tuple(METHODS), QUICK_DEPTHS)),
            quantity=FC_ACCURACY,
            digits=2,
            drawings=(
                AgainstDepth(
                    "accuracy-against-depth",
                    "CIFAR-10 fully connected",
                    "Test accuracy after the last epoch; mean ± standard error over the seeds.",
                    "test accuracy (%)",
                ),
            ),
            notes=("The paper prints no numbers for this figure. ENorm and ENorm + BN have c = 1.2.",),
        ),
    ),
    _trained(
        "table-cifar10-conv",
        "CIFAR-10 fully convolutional",
        'table "CIFAR-10 fully convolutional results" (tab:conv)',
        "ENorm + BN outperforms all other methods, including WN + BN, by a good margin.",
        Protocol(
            recipe="cifar10-conv",
            cases=CONV_CASES,
            quick=CONV_QUICK,
            quantity=FC_ACCURACY,
            digits=2,
            notes=("ENorm has c = 1.2, ENorm + BN has c = 1.", TWO_NUMBERS),
        ),
    ),
    _trained(
        "table-asymmetry",
        "Uniform against adaptive scaling: CIFAR-10 fully convolutional",
        'table "Uniform vs adaptive scaling" (tab:conv_a)',
        "Without BN, c = 1.2 performs the best; with BN the results are less sensitive to c.",
        Protocol(
            recipe="cifar10-conv",
            cases=scaling_cases(paper.ASYMMETRY),
            quick=CONV_QUICK,
            quantity=FC_ACCURACY,
            digits=2,
            notes=(
                TWO_NUMBERS,
                'The paper\'s text says that c = 1.2 is best "with or without BN"; in its table c = 1 is, with BN.',
            ),
        ),
    ),
    _trained(
        "fig-asymmetry-mnist",
        "Uniform against adaptive scaling: MNIST auto-encoder",
        'figures "Uniform vs adaptive scaling on MNIST" (fig:mnist_c, fig:mnist_c2)',
        "Without BN the adaptive scaling outperforms all others; with BN the results are much less sensitive to c.",
        Protocol(
            recipe="mnist-autoencoder",
            cases=scaling_cases({}),
            quick=MNIST_QUICK,
            quantity=MNIST_ERROR,
            digits=3,
            drawings=tuple(
                AgainstEpochs(
                    f"{panel.replace(' ', '-').lower()}",
                    f"MNIST auto-encoder, ENorm {panel}",
                    f"Average training error of each epoch, {panel}; mean ± standard error over the seeds.",
                    "train_metric",
                    "training error",
                    panel,
                )
                for panel in ("without BN", "with BN")
            ),
            notes=("The paper prints no numbers for these figures.",),
        ),
    ),
    _trained(
        "table-impl",
        "Implicit Equi-normalization",
        'appendix "Implicit Equi-normalization"',
        "ENorm-Impl performs generally better than the baseline but does not outperform ENorm, in particular when the "
        "network is deep.",
        Protocol(
            recipe="cifar10-fc",
            cases=depth_cases(IMPLICIT, IMPLICIT_DEPTHS),
            quick=Quick(FC_QUICK, FC_RATES, FC_PILOT, cases=depth_cases(IMPLICIT, QUICK_IMPLICIT_DEPTHS)),
            quantity=FC_ACCURACY,
            digits=2,
            drawings=(
                AgainstDepth(
                    "implicit-against-depth",
                    "CIFAR-10 fully connected: ENorm-Impl",
                    "Test accuracy after the last epoch; mean ± standard error over the seeds.",
                    "test accuracy (%)",
                ),
            ),
            notes=(
                "The paper prints no numbers. λ, half the weight decay, is cross-validated, in the quick preset too.",
            ),
        ),
    ),
    _trained(
        "table-imagenet",
        "ImageNet: ResNet-18 by batch size",
        'table "ResNet-18 results on the ImageNet dataset" (tab:imagenet)',
        "ENorm outperforms GN and BN for batch sizes from 32 to 128.",
        Protocol(
            recipe="imagenet-resnet18",
            cases=imagenet_cases(paper.IMAGENET_BATCHES),
            quick=IMAGENET_QUICK,
            quantity=IMAGENET_ACCURACY,
            digits=2,
            seeds=1,
        ),
    ),
    _trained(
        "fig-imagenet",
        "ImageNet: ResNet-18, batch size 64, curves",
        'figure "ResNet-18 results on the ImageNet dataset, batch size 64" (fig:imagenet)',
        "BN and GN are faster to converge than ENorm, which achieves better results after convergence, and overfits "
        "the training set less than BN and GN but more than the baseline.",
        Protocol(
            recipe="imagenet-resnet18",
            cases=imagenet_cases((64,)),
            quick=IMAGENET_QUICK,
            quantity=IMAGENET_ACCURACY,
            digits=2,
            seeds=1,
            drawings=tuple(
                AgainstEpochs(
                    f"{split}-accuracy",
                    f"ImageNet, ResNet-18, batch size 64: {what}",
                    f"Top-1 accuracy ({what}) after each epoch.",
                    f"{split}_metric",
                    f"{what} accuracy (%)",
                )
                for split, what in (("train", "training"), ("test", "test"))
            ),
        ),
    ),
)
