"""Laws of image folders: determinism, shares of the ranks, transforms, and what is refused."""

import shutil
from pathlib import Path

import pytest
import torch
import vision  # noqa: F401 (before torchvision)
from tiny_data import write, write_image_folder
from torch import Tensor

from equinorm.errors import ArgumentError, EquinormError
from equinorm.experiments.data import Augmentation, Data, load
from equinorm.experiments.data.imagenet import MEAN, STD


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images")
    write_image_folder(path, classes=3, train=4, test=2)
    return path


def small(folder: Path, workers: int = 0, **options) -> Data:
    return load("imagenet", folder, augmentation=Augmentation(16, True), workers=workers, **options)


def collect(split, **options) -> tuple[Tensor, Tensor]:
    batches = list(split.batches(4, **{"seed": 0, "epoch": 0, **options}))
    assert len(batches) == split.steps(4, options.get("world", 1), options.get("training", True))
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def test_shapes_classes_and_sizes(folder: Path) -> None:
    data = small(folder)
    assert (data.train.size, data.validation, data.test.size, data.classes) == (12, None, 6, 3)
    assert (
        data.shape == (3, 16, 16) and data.note == "Image folders of 3 classes: 12 training and 6 test images"
    )
    images, labels = collect(data.train)
    assert images.shape == (12, 3, 16, 16) and images.dtype == torch.float32
    assert labels.bincount().tolist() == [4, 4, 4]
    assert load("imagenet", folder).shape == (3, 224, 224)


def test_training_images_depend_on_seed_epoch_and_rank_and_on_nothing_else(folder: Path) -> None:
    alone, helped = small(folder).train, small(folder, workers=2).train
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    runs = []
    for seed, epoch, rank in keys:
        torch.manual_seed(len(runs))  # whatever the global state
        before = torch.get_rng_state()
        images, labels = collect(alone, seed=seed, epoch=epoch, rank=rank, world=2)
        assert torch.equal(torch.get_rng_state(), before)
        again, same = collect(helped, seed=seed, epoch=epoch, rank=rank, world=2)
        assert torch.equal(images, again) and torch.equal(labels, same)
        runs.append(images)
    assert len({tuple(images.flatten()[:100].tolist()) for images in runs}) == len(keys)


def test_ranks_cover_every_image_once(folder: Path) -> None:
    data = small(folder)
    for training, expected in ((True, [4, 4, 4]), (False, [4, 4, 4])):
        labels = [collect(data.train, rank=rank, world=2, training=training)[1] for rank in (0, 1)]
        assert torch.cat(labels).bincount().tolist() == expected


def test_evaluation_is_the_centre_of_the_resized_image(folder: Path) -> None:
    from PIL import Image

    images, labels = collect(
        load("imagenet", folder, augmentation=Augmentation(28), workers=0).test, training=False
    )
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    paths = sorted((folder / "val").rglob("*.jpeg"))
    for path, image in zip(paths, images, strict=True):
        picture = (
            Image.open(path).convert("RGB").resize((38, 32), Image.Resampling.BILINEAR)
        )  # 28 · 256 / 224
        centre = picture.crop((5, 2, 33, 30))
        pixels = torch.frombuffer(bytearray(centre.tobytes()), dtype=torch.uint8).view(28, 28, 3) / 255
        expected = (pixels - torch.tensor(MEAN)) / torch.tensor(STD)
        torch.testing.assert_close(image, expected.permute(2, 0, 1), rtol=1e-4, atol=1e-5)


def test_every_image_is_cropped_anew_in_every_epoch(folder: Path, tmp_path: Path) -> None:
    source = next((folder / "train").rglob("*.jpeg"))
    for part in ("train", "val"):
        for k in range(6):
            write(tmp_path / part / "same" / f"{k}.jpeg", source.read_bytes())
    split = small(tmp_path).train
    images = torch.cat([collect(split, epoch=epoch)[0] for epoch in (0, 1)])
    assert len({tuple(image.flatten().tolist()) for image in images}) == 12


def test_training_crops_vary_and_flips_are_optional(folder: Path) -> None:
    """On images that brighten to the right, a flip shows."""

    def slopes(flip: bool) -> Tensor:
        data = load("imagenet", ramps, augmentation=Augmentation(16, flip), workers=0)
        images = torch.cat([collect(data.train, epoch=epoch)[0] for epoch in range(8)])
        return (images[..., 8:].mean((1, 2, 3)) - images[..., :8].mean((1, 2, 3))).sign()

    from PIL import Image

    ramps = folder.parent / "ramps"
    for part in ("train", "val"):
        (ramps / part / "a").mkdir(parents=True)
        for k in range(4):
            ramp = bytes(range(0, 240, 6)) * 40
            Image.frombytes("L", (40, 40), ramp).convert("RGB").save(ramps / part / "a" / f"{k}.png")
    assert (slopes(flip=False) > 0).all()
    flipped = (slopes(flip=True) < 0).sum()
    assert 8 <= flipped <= 24  # of 32


def test_validation_and_limit_are_random_and_fixed(folder: Path) -> None:
    data = small(folder, validation=320_000, limit=6)
    assert (data.train.size, data.validation.size, data.test.size) == (6, 2, 4)
    train, held = ({path for path, _ in split.paths} for split in (data.train, data.validation))
    assert not train & held
    assert {path for path, _ in small(folder, validation=320_000, limit=6).train.paths} == train


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named_in_one_line(folder: Path, tmp_path: Path, workers: int) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    broken = tmp_path / "copy" / "train" / "class1" / "2.jpeg"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(EquinormError, match=r"2\.jpeg: cannot be read as an image") as caught:
        collect(small(tmp_path / "copy", workers=workers).train)
    assert "\n" not in str(caught.value)


def no_val(folder: Path) -> None:
    shutil.rmtree(folder / "val")


def other_classes(folder: Path) -> None:
    (folder / "val" / "class2").rename(folder / "val" / "cat")


def empty_class(folder: Path) -> None:
    (folder / "train" / "class3").mkdir()


def only_text(folder: Path) -> None:
    shutil.rmtree(folder / "train")
    write(folder / "train" / "a" / "readme.txt", b"")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_val, "val: no such folder"),
        (other_classes, "class cat"),
        (empty_class, "class3"),
        (only_text, "a"),
    ],
)
def test_folders_that_are_not_a_data_set(folder: Path, tmp_path: Path, change, message: str) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    change(tmp_path / "copy")
    with pytest.raises(ArgumentError, match=message) as caught:
        small(tmp_path / "copy")
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_imagenet_needs_a_data_directory() -> None:
    with pytest.raises(ArgumentError, match="--data-dir"):
        load("imagenet", None)
