"""What the installed versions can run. `make compat` runs tests with the oldest versions that pyproject.toml allows."""

from __future__ import annotations

import pytest

from pilekit.errors import PilekitError
from pilekit.train.config.check import check_versions

try:
    check_versions()
    TRAINS = True
except PilekitError:
    TRAINS = False

trains = pytest.mark.skipif(not TRAINS, reason="train needs newer versions of torch and transformers")
