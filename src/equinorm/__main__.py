"""``python -m equinorm`` is the ``equinorm`` command."""

from equinorm.cli import main

if __name__ == "__main__":
    main()
