"""`python -m engine`: models and speed from the command line."""

import sys

from engine.garbage import collect_rarely

collect_rarely()  # what modules make is no garbage, and a worker's start waits for them

from engine.cli.app import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
