"""`python -m tools.setup run --venv .venv --torch torch==2.13.0`; the Makefile calls it."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the other files do not load there, and their errors would not help
    sys.exit(
        "skillmix needs Python 3.11 or newer, and {} is Python {}.{}.\n"
        "Install a newer Python and name it: make run PYTHON=python3.12".format(sys.executable, *sys.version_info[:2])
    )

from tools.setup.command import main

if __name__ == "__main__":
    main()
