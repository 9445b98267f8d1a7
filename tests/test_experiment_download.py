"""Downloads against a server on this machine: whole files with the right checksum, or nothing."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiny_data import write, write_cifar10, write_mnist

from equinorm.errors import ArgumentError, EquinormError
from equinorm.experiments.data import cifar10, load, mnist


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and remembers what was asked for."""

    requests: list[str]

    def log_message(self, *_: object) -> None:
        self.requests.append(self.path)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder, its address, and the list of requests."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    folder = tmp_path / "served"
    folder.mkdir()
    handler = type("Counting", (Handler,), {"requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{http.server_address[1]}/", handler.requests
        http.shutdown()
        thread.join()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def mnist_server(server, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str, list[str]]:
    folder, address, requests = server
    write_mnist(folder, gz=True)
    sums = {name: sha256(folder / f"{name}.gz") for name in mnist.SHA256}
    monkeypatch.setattr(mnist, "SHA256", sums)
    monkeypatch.setattr(mnist, "MIRRORS", (f"{address}nothing-here/", address))
    return folder, address, requests


def test_mnist_comes_from_the_first_mirror_that_has_it_and_only_once(mnist_server, tmp_path: Path) -> None:
    _, _, requests = mnist_server
    data_dir = tmp_path / "new" / "data"
    assert load("mnist", data_dir, download=True).train.size == 20
    assert files_in(data_dir) == sorted(f"MNIST/raw/{name}.gz" for name in mnist.SHA256)
    assert load("mnist", data_dir).test.size == 10
    asked = len(requests)
    load("mnist", data_dir, download=True)
    assert len(requests) == asked


def test_only_what_is_missing_is_fetched(mnist_server, tmp_path: Path) -> None:
    _, _, requests = mnist_server
    write_mnist(tmp_path / "data")
    (tmp_path / "data" / "t10k-labels-idx1-ubyte").unlink()
    load("mnist", tmp_path / "data", download=True)
    assert {path.rpartition("/")[2] for path in requests} == {"t10k-labels-idx1-ubyte.gz"}


def test_a_wrong_checksum_leaves_no_file(mnist_server, tmp_path: Path) -> None:
    folder, _, _ = mnist_server
    write(folder / "train-images-idx3-ubyte.gz", b"something else")
    with pytest.raises(EquinormError, match=r"train-images-idx3-ubyte\.gz.*wrong checksum") as caught:
        load("mnist", tmp_path / "data", download=True)
    assert "\n" not in str(caught.value)
    assert files_in(tmp_path / "data") == []


def test_no_mirror_is_one_line_that_says_where_to_put_the_file(
    mnist_server, monkeypatch, tmp_path: Path
) -> None:
    _, address, _ = mnist_server
    monkeypatch.setattr(mnist, "MIRRORS", (f"{address}a/", "http://127.0.0.1:9/"))
    said = r"cannot be downloaded.*MNIST/raw.*/a/.*: the server answers 404.*127\.0\.0\.1:9/\S*: cannot be reached\)$"
    with pytest.raises(EquinormError, match=said) as caught:
        load("mnist", tmp_path / "data", download=True)
    assert str(caught.value).count("127.0.0.1") == 2, "every address once"
    assert files_in(tmp_path / "data") == []


def test_a_folder_that_cannot_be_made_is_one_line(mnist_server, tmp_path: Path) -> None:
    write(tmp_path / "file", b"")
    for data_dir in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EquinormError, match="file") as caught:
            load("mnist", data_dir, download=True)
        assert "\n" not in str(caught.value)


@pytest.fixture
def cifar_server(server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder, address, _ = server
    write_cifar10(tmp_path / "source" / cifar10.FOLDER)
    with tarfile.open(folder / cifar10.ARCHIVE, "w:gz") as archive:
        archive.add(tmp_path / "source" / cifar10.FOLDER, cifar10.FOLDER)
        outside = tarfile.TarInfo("../outside")
        outside.size = 1
        archive.addfile(outside, io.BytesIO(b"x"))
    monkeypatch.setattr(cifar10, "SHA256", sha256(folder / cifar10.ARCHIVE))
    monkeypatch.setattr(cifar10, "MIRRORS", (address,))
    return folder


def test_cifar10_is_extracted_and_nothing_else_is_left(cifar_server, tmp_path: Path) -> None:
    assert load("cifar10", tmp_path / "data", download=True).train.size == 20
    names = [file.name for file in cifar10.TRAIN + cifar10.TEST]
    assert files_in(tmp_path / "data") == sorted(f"{cifar10.FOLDER}/{name}" for name in names)
    for name in names:
        source, copy = (tmp_path / part / cifar10.FOLDER / name for part in ("source", "data"))
        assert source.read_bytes() == copy.read_bytes()
    assert not (tmp_path / "outside").exists()


def test_a_cifar10_archive_that_is_there_is_used_and_kept(cifar_server, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cifar10, "MIRRORS", ("http://127.0.0.1:9/",))
    archive = write(tmp_path / "data" / cifar10.ARCHIVE, (cifar_server / cifar10.ARCHIVE).read_bytes())
    assert load("cifar10", tmp_path / "data", download=True).train.size == 20
    assert archive.exists()


def test_a_cifar10_archive_with_another_checksum_is_not_opened(cifar_server, tmp_path: Path) -> None:
    with (cifar_server / cifar10.ARCHIVE).open("ab") as archive:
        archive.write(b"more")
    with pytest.raises(EquinormError, match="wrong checksum"):
        load("cifar10", tmp_path / "data", download=True)
    assert files_in(tmp_path / "data") == []


def test_imagenet_is_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"image-net\.org"):
        load("imagenet", tmp_path, download=True)
