"""Finding and reading the files of a data set; whatever is wrong with one is said in one line that names it."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from equinorm.errors import ArgumentError


@dataclass(frozen=True)
class File:
    """A published file: its name without ``.gz``, and how many examples and which MD5 it holds, uncompressed."""

    name: str
    examples: int
    md5: str


def find(data_dir: Path, folders: Iterable[str], files: Iterable[File]) -> dict[str, Path]:
    """Where the files are, each plain or gzipped, in one of the folders of the data directory, by name."""
    if data_dir.exists() and not data_dir.is_dir():
        raise ArgumentError(f"{data_dir}: is not a folder")
    found = {}
    for file in files:
        places = (data_dir / folder / f"{file.name}{end}" for folder in folders for end in ("", ".gz"))
        path = next((place for place in places if place.is_file()), None)
        if path is not None:
            found[file.name] = path
    return found


def require_all(data_dir: Path, folders: Iterable[str], files: Iterable[File]) -> dict[str, Path]:
    """As ``find``; a file that is nowhere is an error."""
    found = find(data_dir, folders, files)
    missing = [file.name for file in files if file.name not in found]
    if missing:
        places = ", ".join(str(data_dir / folder) for folder in folders)
        raise ArgumentError(f"{', '.join(missing)}: not found in {places}; --download fetches the data set")
    return found


def read(path: Path) -> bytes:
    """The content of a file, uncompressed."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ArgumentError(f"{path}: is truncated or damaged ({error}); delete it and --download") from None
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read ({error.strerror})") from None


def check(path: Path, content: bytes, examples: int, published: File) -> None:
    """Compare with the published checksum. Files with fewer or more examples have none; their sizes differ."""
    if (
        examples == published.examples
        and hashlib.md5(content, usedforsecurity=False).hexdigest() != published.md5
    ):
        raise ArgumentError(
            f"{path}: is not the published {published.name}: its MD5 differs; delete it and --download"
        )
