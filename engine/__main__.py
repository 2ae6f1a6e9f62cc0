"""`python -m engine`: models and speed from the command line."""

import sys

from engine.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
