from __future__ import annotations

from tests.probed_once import export_once

export_once()
