"""``python -m lethe.evidence.gdn_probes``."""

import sys

from lethe.evidence.gdn_probes import main

sys.exit(main())
