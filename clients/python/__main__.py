"""``python -m whamming``: the same as the command ``whamming``."""

import sys

from whamming.cli import main

if __name__ == "__main__":
    sys.exit(main())
