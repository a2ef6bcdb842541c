"""``python -m lethe`` is the command line."""

from lethe.cli import main

if __name__ == "__main__":
    main()
