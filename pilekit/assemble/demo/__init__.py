"""The demo's corpus: texts from the Python installation (python_text.py), edited copies of some (reposts.py) and
generated arithmetic (arithmetic.py) become the sources of a manifest (write_sources.py), like a user's own."""

from __future__ import annotations

from pathlib import Path

from pilekit.assemble.assemble_corpus import assemble_corpus
from pilekit.assemble.demo.write_sources import MANIFEST, write_demo_sources

__all__ = ["demo_corpus", "write_demo_sources"]


def demo_corpus(folder: Path, *, arithmetic_bytes: int = 2_500_000, seed: int = 0, library: Path | None = None) -> None:
    """Make the demo's corpus in `folder`, and its sources beside it; arguments as in `write_demo_sources`."""
    sources = folder.with_name("sources")
    write_demo_sources(sources, arithmetic_bytes=arithmetic_bytes, seed=seed, library=library)
    assemble_corpus(sources / MANIFEST, folder)
