"""`python -m evidence` is the command `evidence`."""

import sys

from evidence.command import main

if __name__ == "__main__":
    sys.exit(main())
