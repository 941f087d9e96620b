"""Run the command: ``python -m tkc``."""

from tkc.cli import main

if __name__ == "__main__":
    main()
