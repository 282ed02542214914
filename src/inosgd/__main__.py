"""``python -m inosgd``."""

from inosgd.cli import main

if __name__ == "__main__":
    main()
