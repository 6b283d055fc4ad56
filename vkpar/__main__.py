"""``python -m vkpar``: the command line."""

import sys

from vkpar.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
