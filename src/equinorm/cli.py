"""The ``equinorm`` command: errors become one line on standard error and a nonzero exit status.

The commands themselves are in ``commands.py``, imported here so that a missing extra is an error like
any other. Set ``EQUINORM_DEBUG`` to see tracebacks and warnings.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

from equinorm.errors import EquinormError

INTERRUPTED = 130  # what shells report for Ctrl-C


def main() -> None:
    """Entry point."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    debug = bool(os.environ.get("EQUINORM_DEBUG"))
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.simplefilter("ignore")
            status = _run(arguments)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as error:
        if debug:
            raise
        return _complain(error)
    if status == INTERRUPTED:
        print("equinorm: interrupted", file=sys.stderr)
    return status


def _run(arguments: Sequence[str]) -> int:
    try:
        from equinorm.commands import app
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] not in ("typer", "rich"):
            raise
        raise EquinormError('the command line needs an extra: pip install "equinorm[cli]"') from error
    # Without arguments, say what there is. Not standalone: typer would frame errors in boxes.
    status = app(args=list(arguments) or ["--help"], prog_name="equinorm", standalone_mode=False)
    return int(status or 0)


def _complain(error: Exception) -> int:
    """Print one line; returns the exit status, 2 for a command line that does not parse."""
    usage = getattr(error, "format_message", None)
    if usage is not None:
        text = f"{usage()} (see equinorm --help)"
    elif isinstance(error, EquinormError):
        text = str(error)
    else:
        text = f"unexpected {type(error).__name__}: {error} (EQUINORM_DEBUG=1 shows the traceback)"
    print("equinorm:", " ".join(text.split()), file=sys.stderr)
    return int(getattr(error, "exit_code", 1))
