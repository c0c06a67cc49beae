"""``python -m joma``."""

import sys

from joma.cli import main

sys.exit(main())
