"""Laws of the experiments' data: orders, crops, normalisation, partition, files."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from tiny_data import idx, random_images, raw, write, write_cifar10, write_mnist
from torch import Tensor

from equinorm.errors import ArgumentError, EquinormError
from equinorm.experiments import extra
from equinorm.experiments.data import Augmentation, load, mnist, order
from equinorm.experiments.data.memory import Images, MemorySplit, Normalize

SIZES = [
    (20, 4, 1),
    (20, 4, 2),
    (21, 4, 2),
    (23, 4, 2),
    (40, 4, 3),
    (7, 8, 1),
    (7, 8, 2),
    (9, 1, 2),
    (17, 8, 2),
]


def training_orders(size: int, batch: int, world: int, epoch: int = 0, seed: int = 0) -> list[Tensor]:
    return [order.training_order(size, batch, seed, epoch, rank, world) for rank in range(world)]


@pytest.mark.parametrize(("size", "batch", "world"), SIZES)
def test_ranks_are_disjoint_and_cover_all_but_what_cannot_be_dealt_evenly(size, batch, world) -> None:
    ranks = training_orders(size, batch, world)
    together = torch.cat(ranks).tolist()
    assert len(set(together)) == len(together)
    left_out = size - len(together)
    remainder = size % (batch * world)
    assert left_out < world or (left_out == remainder and remainder // world == 1)
    sizes = [[len(part) for part in torch.split(rank, batch)] for rank in ranks]
    assert all(each == sizes[0] for each in sizes)
    assert len(sizes[0]) == order.training_steps(size, batch, world)


@pytest.mark.parametrize(("size", "batch", "world"), SIZES)
def test_every_rank_keeps_at_least_two_examples_in_the_last_of_several_batches(size, batch, world) -> None:
    last = torch.split(training_orders(size, batch, world)[0], batch)[-1]
    assert len(last) > 1 or batch == 1 or order.training_steps(size, batch, world) == 1


def test_a_step_sees_the_same_examples_however_many_processes_share_it() -> None:
    one = torch.split(training_orders(50, 12, 1)[0], 12)
    for world in (2, 3, 4):
        shares = [torch.split(rank, 12 // world) for rank in training_orders(50, 12 // world, world)]
        for step in range(50 // 12):
            assert torch.equal(torch.cat([rank[step] for rank in shares]), one[step])


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def shuffled(seed: int, epoch: int) -> tuple[int, ...]:
        return tuple(training_orders(100, 10, 1, epoch, seed)[0].tolist())

    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (10, 1), (1, 10), (101, 0)]
    assert len({shuffled(*key) for key in keys}) == len(keys)
    torch.manual_seed(7)  # the global state has no part in it
    assert shuffled(0, 1) == shuffled(0, 1) != tuple(range(100))


def memory_split(count: int = 40, size: int = 8, **augmentation) -> MemorySplit:
    """Labels are indices."""
    pixels, _ = random_images(count, 3, size, size)
    images = Images(pixels, torch.arange(count))
    return MemorySplit(images, Normalize.of(images), Augmentation(**augmentation))


def collect(split, batch_size: int = 7, **options) -> tuple[Tensor, Tensor]:
    batches = list(split.batches(batch_size, **{"seed": 0, "epoch": 0, **options}))
    assert len(batches) == split.steps(batch_size, options.get("world", 1), options.get("training", True))
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def test_normalisation_is_that_of_the_pixels_in_double_precision() -> None:
    split = memory_split()
    pixels = split.images.pixels.double()
    mean, std = pixels.mean((0, 2, 3), keepdim=True), pixels.std((0, 2, 3), correction=0, keepdim=True)
    images, labels = collect(split, training=False)
    assert torch.equal(labels, torch.arange(40))
    assert images.dtype == torch.float32
    torch.testing.assert_close(images.double(), (pixels - mean) / std, rtol=1e-5, atol=1e-6)


def test_a_constant_channel_is_zero_after_normalisation() -> None:
    images = Images(torch.full((3, 1, 2, 2), 9, dtype=torch.uint8), torch.arange(3))
    assert not Normalize.of(images)(images.pixels).any()


def candidates(image: Tensor, crop: int) -> dict[tuple[int, int, bool], Tensor]:
    """All crops of one image, by a loop: (top, left, flipped) → pixels."""
    found = {}
    for top in range(image.shape[-2] - crop + 1):
        for left in range(image.shape[-1] - crop + 1):
            part = image[:, top : top + crop, left : left + crop]
            found[top, left, False] = part
            found[top, left, True] = torch.stack([part[:, :, crop - 1 - k] for k in range(crop)], 2)
    return found


@pytest.mark.parametrize(("crop", "flip"), [(6, True), (6, False), (8, True), (None, True), (None, False)])
def test_every_training_image_is_a_crop_of_its_example_and_every_crop_occurs_as_often(crop, flip) -> None:
    split = memory_split(crop=crop, flip=flip)
    seen: Counter[tuple[int, int, bool]] = Counter()
    epochs = 12
    for epoch in range(epochs):
        images, labels = collect(split, epoch=epoch)
        for image, label in zip(images, labels.tolist(), strict=True):
            crops = candidates(split.images.pixels[label], crop or 8)
            matches = [key for key, part in crops.items() if torch.equal(split.normalize(part), image)]
            assert len(matches) == 1
            seen[matches[0]] += 1
    offsets = (8 - (crop or 8) + 1) ** 2
    kinds = offsets * (2 if flip else 1)
    expected = epochs * 40 / kinds
    assert len(seen) == kinds
    assert all(abs(count - expected) < 5 * expected**0.5 for count in seen.values())
    assert split.shape == (3, crop or 8, crop or 8)


def test_evaluation_takes_central_crops_in_order() -> None:
    split = memory_split(size=9, crop=6, flip=True)
    images, labels = collect(split, training=False, epoch=3)
    assert torch.equal(labels, torch.arange(40))
    assert torch.equal(images, split.normalize(split.images.pixels[:, :, 1:7, 1:7]))


def test_batches_depend_on_seed_epoch_and_rank_alone() -> None:
    split = memory_split(crop=6, flip=True)
    keys = [(seed, epoch, rank) for seed in (0, 1) for epoch in (0, 1) for rank in (0, 1)]

    def run(key: tuple[int, int, int]) -> Tensor:
        seed, epoch, rank = key
        return collect(split, batch_size=5, seed=seed, epoch=epoch, rank=rank, world=2)[0]

    runs = [run(key) for key in keys]
    before = torch.get_rng_state()
    for key, images in zip(reversed(keys), reversed(runs), strict=True):
        assert torch.equal(run(key), images)
    assert torch.equal(torch.get_rng_state(), before)
    assert len({tuple(images.flatten()[:50].tolist()) for images in runs}) == len(keys)


def test_ranks_crop_and_flip_independently() -> None:
    """Images that show, after any crop and flip, which one it was."""
    place = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).expand(40, 3, 8, 8)
    split = MemorySplit(
        Images(place, torch.arange(40)), Normalize(torch.zeros(1), torch.ones(1)), Augmentation(6, True)
    )
    zero, one = (collect(split, rank=rank, world=2)[0][:, 0, 0, :2] for rank in (0, 1))
    assert (zero == one).all(1).sum() < 10  # of 20; one in 18 by chance


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_gives_every_example_to_one_rank(world: int) -> None:
    split = memory_split()
    expected = split.normalize(split.images.pixels)
    labels = []
    for rank in range(world):
        batches = list(split.batches(7, seed=0, epoch=0, rank=rank, world=world, training=False))
        steps = split.steps(7, world, training=False)
        assert len(batches) == steps if rank == 0 else steps - 1 <= len(batches) <= steps
        labels += [y for _, y in batches]
        assert all(torch.equal(x, expected[y]) for x, y in batches)
    assert sorted(torch.cat(labels).tolist()) == list(range(40))


# Files


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("folder", mnist.FOLDERS)
def test_mnist_is_found_and_read_byte_for_byte(tmp_path: Path, folder: str, gz: bool) -> None:
    write_mnist(tmp_path / folder, train=20, test=10, gz=gz)
    data = load("mnist", tmp_path)
    pixels, labels = random_images(20, 28, 28)
    assert torch.equal(data.train.images.pixels, pixels[:, None])
    assert torch.equal(data.train.images.labels, labels.long())
    assert (data.train.size, data.validation, data.test.size) == (20, None, 10)
    assert (data.shape, data.classes) == ((1, 28, 28), 10)
    assert data.note == "MNIST (not the published files): 20 training and 10 test images"


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin"])
def test_cifar10_is_found_and_read_byte_for_byte(tmp_path: Path, folder: str) -> None:
    write_cifar10(tmp_path / folder, per_file=4)
    data = load("cifar10", tmp_path, augmentation=Augmentation(28, True))
    pixels = torch.cat([random_images(4, 3, 32, 32, seed=k)[0] for k in range(1, 6)])
    assert torch.equal(data.train.images.pixels, pixels)
    assert data.train.images.labels.tolist() == [0, 1, 2, 3] * 5
    assert data.test.size == 10 and data.shape == (3, 28, 28)


def mnist_with(**changed: bytes):
    """A change of one of MNIST's small files."""

    def change(folder: Path) -> None:
        write_mnist(folder)
        for name, content in changed.items():
            write(folder / name.replace("_", "-"), content)

    return change


def cifar_with(content: bytes):
    def change(folder: Path) -> None:
        write_cifar10(folder)
        write(folder / "data_batch_3.bin", content)

    return change


def gz_cut(folder: Path) -> None:
    write_mnist(folder, gz=True)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])


def gz_damaged(folder: Path) -> None:
    write_mnist(folder, gz=True)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:50] + b"?" * 50 + path.read_bytes()[100:])


IMAGES, LABELS = random_images(20, 28, 28)
BAD_FILES = {
    "truncated images": ("mnist", mnist_with(train_images_idx3_ubyte=idx(IMAGES)[:-1]), "truncated"),
    "too long": ("mnist", mnist_with(train_labels_idx1_ubyte=idx(LABELS) + b"0"), "truncated or damaged"),
    "truncated header": ("mnist", mnist_with(t10k_images_idx3_ubyte=idx(IMAGES)[:9]), "not an IDX file"),
    "empty": ("mnist", mnist_with(t10k_labels_idx1_ubyte=b""), "not an IDX file"),
    "wrong magic": ("mnist", mnist_with(train_labels_idx1_ubyte=b"\1" + idx(LABELS)[1:]), "not an IDX file"),
    "labels for images": ("mnist", mnist_with(train_images_idx3_ubyte=idx(LABELS)), "not an IDX file"),
    "another shape": ("mnist", mnist_with(train_images_idx3_ubyte=idx(IMAGES[:, :, 1:])), "shape"),
    "no examples": ("mnist", mnist_with(train_images_idx3_ubyte=idx(IMAGES[:0])), "0 of them"),
    "too few labels": ("mnist", mnist_with(train_labels_idx1_ubyte=idx(LABELS[:9])), "20 images"),
    "bad label": ("mnist", mnist_with(train_labels_idx1_ubyte=idx(LABELS + 1)), "label 10"),
    "gz cut short": ("mnist", gz_cut, "truncated or damaged"),
    "gz damaged": ("mnist", gz_damaged, "truncated or damaged"),
    "no files": ("mnist", lambda folder: None, "train-images-idx3-ubyte.*not found.*--download"),
    "cifar truncated": ("cifar10", cifar_with(b"0" * 3072), "data_batch_3.bin: is truncated"),
    "cifar empty": ("cifar10", cifar_with(b""), "data_batch_3.bin: is truncated"),
    "cifar bad label": ("cifar10", cifar_with(b"\12" + b"0" * 3072), "data_batch_3.bin: has the label 10"),
    "cifar checksum": ("cifar10", cifar_with(bytes(30_730_000)), "data_batch_3.bin.*MD5"),
    "no cifar files": ("cifar10", lambda folder: None, "data_batch_1.bin.*not found"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_one_clear_line(tmp_path: Path, name: str) -> None:
    dataset, make, message = BAD_FILES[name]
    make(tmp_path)
    with pytest.raises(ArgumentError, match=message) as caught:
        load(dataset, tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is not a folder"):
        load("mnist", write(tmp_path / "file", b""))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "svhn"}, "svhn.*mnist, cifar10, imagenet"),
        ({"limit": 0}, "limit=0"),
        ({"validation": 60_000}, "validation=60000"),
        ({"augmentation": Augmentation(crop=29)}, "crop=29"),
        ({"download": True}, "--data-dir"),
    ],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(**{"dataset": "mnist", "data_dir": None, **options})


@pytest.mark.parametrize(
    ("batch_size", "rank", "world", "message"),
    [(0, 0, 1, "batch_size=0"), (4, 2, 2, "rank=2"), (4, -1, 2, "rank=-1"), (4, 0, 41, "too few")],
)
def test_impossible_batches_are_refused_when_asked_for(batch_size, rank, world, message) -> None:
    with pytest.raises(ArgumentError, match=message):
        next(memory_split().batches(batch_size, seed=0, epoch=0, rank=rank, world=world))


# Partition


def keys(split) -> set[bytes]:
    return {raw(image[0, 0]) for image in split.images.pixels}


@pytest.fixture
def forty(tmp_path: Path) -> Path:
    write_cifar10(tmp_path, per_file=8, test=20)
    return tmp_path


def test_validation_is_held_out_in_proportion_and_fixed_by_the_seed(forty: Path) -> None:
    everything = keys(load("cifar10", forty).train)
    data = load("cifar10", forty, validation=10_000)  # of 50,000 as published: a fifth
    train, held = keys(data.train), keys(data.validation)
    assert (len(train), len(held), data.test.size) == (32, 8, 20)
    assert not train & held and train | held == everything
    assert keys(load("cifar10", forty, validation=10_000).validation) == held
    assert keys(load("cifar10", forty, validation=10_000, seed=1).validation) != held
    assert data.note.endswith("32 training, 8 validation and 20 test images")


def test_a_limit_keeps_the_same_share_of_every_part(forty: Path) -> None:
    whole = load("cifar10", forty, validation=10_000)
    data = load("cifar10", forty, validation=10_000, limit=16)
    assert (data.train.size, data.validation.size, data.test.size) == (16, 4, 10)
    for part in ("train", "validation", "test"):
        assert keys(getattr(data, part)) < keys(getattr(whole, part))
    assert load("cifar10", forty, limit=1000).train.size == 40
    assert load("cifar10", forty, limit=1).test.size == 1


def test_pixels_and_labels_stay_together(forty: Path) -> None:
    whole = load("cifar10", forty)
    labels = dict(zip(map(raw, whole.train.images.pixels), whole.train.images.labels.tolist(), strict=True))
    part = load("cifar10", forty, validation=10_000, limit=16).train.images
    assert all(labels[raw(p)] == label for p, label in zip(part.pixels, part.labels.tolist(), strict=True))


# Without a data directory


@pytest.mark.parametrize(("dataset", "shape"), [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))])
def test_digits_stand_in_and_say_so(dataset: str, shape: tuple[int, ...]) -> None:
    from sklearn.datasets import load_digits

    data = load(dataset, None, validation=10_000)
    assert "scikit-learn's digits" in data.note and "in place of" in data.note
    assert data.shape == shape and data.train.images.pixels.shape[1:] == shape
    splits = (data.train, data.validation, data.test)
    assert sum(split.size for split in splits) == 1797
    counts = torch.cat([split.images.labels for split in splits]).bincount()
    assert counts.tolist() == torch.tensor(load_digits().target).bincount().tolist()
    values = data.train.images.pixels
    assert values.min() == 0 and values.max() == 255


# Optional packages


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("No module named 'sklearn'"), r"sklearn.*pip install .*equinorm\[experiments\]"),
        (RuntimeError("operator torchvision::nms does not exist\nmore"), "does not import beside .*nms"),
    ],
)
def test_a_package_that_does_not_import_is_one_line(monkeypatch, error: Exception, message: str) -> None:
    def fail(module: str) -> None:
        raise error

    monkeypatch.setattr(extra.importlib, "import_module", fail)
    with pytest.raises(EquinormError, match=message) as caught:
        load("mnist", None)
    assert "\n" not in str(caught.value)
