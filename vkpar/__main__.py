"""``python -m vkpar``: the command line."""

import sys

from vkpar.cli import main

if __name__ == "__main__":
    sys.exit(main())
