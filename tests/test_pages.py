"""Runs the Python code of documentation pages unchanged, from the first line to the last."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pilekit import deduplicate
from tests.stream.corpora import made, mixed
from tests.tiny import tiny_model
from tests.tokenize.making import byte_level_bpe

DOCS = Path(__file__).parent.parent / "docs"


def python_of(page: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The files that the pages use: data/train, data/val.jsonl.zst, tokenizer.json, model/config.json, dedup/."""
    mixed(tmp_path / "data" / "train")
    made(tmp_path / "val", [40])
    (tmp_path / "val" / "00.jsonl.zst").rename(tmp_path / "data" / "val.jsonl.zst")
    tokenizer = byte_level_bpe(300)
    tokenizer.add_special_tokens(["<|mask|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tiny_model("gpt_neox", max_length=256).config.save_pretrained(tmp_path / "model")
    deduplicate(str(tmp_path / "data" / "train"), out=tmp_path / "dedup", write=False)
    return tmp_path


@pytest.mark.slow
def test_the_page_on_streaming_runs(here: Path) -> None:
    script = here / "page.py"
    script.write_text(python_of("streaming.md"), encoding="utf-8")
    done = subprocess.run([sys.executable, "-P", script.name], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    page = (DOCS / "streaming.md").read_text("utf-8")
    explained = re.search(r"^lanes [^\n]* columns = .*?(?=^memory)", page, re.MULTILINE | re.DOTALL)
    assert explained is not None
    for line in explained[0].splitlines():
        assert line in done.stdout, line
