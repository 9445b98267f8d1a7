"""Downloads with progress and checksum: a file is there whole, or not at all."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from equinorm.checkpoint import write_atomically
from equinorm.errors import EquinormError
from equinorm.experiments.extra import require


def fetch(urls: Sequence[str], sha256: str, path: Path) -> None:
    """Download one file from the first of the mirrors that has it.

    pooch writes to a temporary file in the same folder, and moves it once its checksum is right.
    """
    pooch = require("pooch")
    pooch.get_logger().setLevel("WARNING")
    failures = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for url in urls:
            try:
                downloader = pooch.HTTPDownloader(progressbar=True, timeout=30)
                pooch.retrieve(url, f"sha256:{sha256}", path.name, path.parent, downloader=downloader)
                return
            except (ValueError, require("requests").RequestException) as error:  # checksum; network
                failures.append(f"{url}: {_reason(error)}")
    except OSError as error:
        raise EquinormError(f"{path}: cannot be written ({error.strerror or error})") from None
    raise EquinormError(
        f"{path.name}: cannot be downloaded; try again, or put it into {path.parent} ({'; '.join(failures)})"
    )


def _reason(error: Exception) -> str:
    """In a few words: requests' own messages repeat the address, and those of the layers below, many times over."""
    requests = require("requests")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, ValueError) and "hash" in str(error):
        return "wrong checksum"
    if status is not None:
        return f"the server answers {status}"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not accepted"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    return "cannot be reached" if isinstance(error, requests.ConnectionError) else type(error).__name__


def fetch_archive(urls: Sequence[str], sha256: str, archive: Path, members: Mapping[str, Path]) -> None:
    """Download a ``.tar.gz``, extract some of its files, each to its own place.

    It is deleted then, unless it was there before.
    """
    given = archive.exists()
    fetch(urls, sha256, archive)
    with tarfile.open(archive) as content:
        for member, path in members.items():
            source = content.extractfile(member)
            if source is None:
                raise EquinormError(f"{archive}: {member} is not a file")
            path.parent.mkdir(parents=True, exist_ok=True)
            with source:
                write_atomically(path, partial(_copy, source))
    if not given:
        archive.unlink()


def _copy(source: IO[bytes], target: Path) -> None:
    with target.open("wb") as file:
        shutil.copyfileobj(source, file)
