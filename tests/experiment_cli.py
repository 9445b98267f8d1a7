"""The ``equinorm`` command, with torchvision's operators declared first (see ``vision``)."""

import vision  # noqa: F401

from equinorm.cli import main

if __name__ == "__main__":
    main()
