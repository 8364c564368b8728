"""The steps of an output that grows part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pilekit.artifacts.job_folder import output_folder
from pilekit.tokenize.files.formats import token_files
from pilekit.tokenize.files.growing_output import GrowingOutput
from pilekit.tokenize.files.token_documents import Rows, token_rows


class Parts(dict[str, Callable[[], Rows]]):
    """Counts the names that are looked at in turn."""

    seen = 0

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            self.seen += 1
            yield name


def test_a_part_is_appended_without_a_look_at_all_parts_before_it(tmp_path: Path) -> None:
    """Otherwise n parts take n * n steps: two thousand million for 65,600 shards."""
    names = [f"{number:03}.jsonl" for number in range(200)]

    def rows() -> Rows:
        zero = np.zeros(1, np.int64)
        return [token_rows("0", zero, zero, ["ArXiv"], zero + 1)]

    parts = Parts(dict.fromkeys(names, rows))
    ids = tmp_path / "ids"
    ids.write_bytes(b"ab")
    with output_folder(tmp_path / "out", kind="tokens", parameters={}, inputs={"": 1}) as output:
        growing_output = GrowingOutput(token_files(tmp_path / "x", "megatron", None, "uint16"), output, parts, "")
        for _ in range(2):
            for name in names:
                growing_output.append(name, {}, [ids])
        assert growing_output.appended_parts == len(names)
        assert (output.folder / "joined/x_text_document.bin").read_bytes() == b"ab" * len(names)
    assert parts.seen < 5 * len(names)
