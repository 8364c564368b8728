"""`pilekit show`: one document, exactly where a program reads it and harmlessly where a person does."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from pilekit.cli import show
from pilekit.errors import PilekitError
from pilekit.shards.index.build import build_index
from pilekit.shards.write.shard_writer import ShardWriter
from tests.shards.making import record, some_lines, zstd_frame

SHOW = [sys.executable, "-c", "from pilekit.cli.show import command; command(prog_name='pilekit show')"]
TEXTS = ["first", "two\nlines\n", "bell \x07 red \x1b[31m tab\t back\r\n and \u202e é日本", "", "no newline"]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "00.jsonl.zst"
    path.write_bytes(zstd_frame(b"\n".join([*map(record, TEXTS), b"", b"{", b'{"text": "bare", "url": "u"}']) + b"\n"))
    return path


def run(*arguments: str | Path | int) -> Result:
    result = CliRunner().invoke(show.command, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def in_terminal(*arguments: str | Path | int) -> str:
    """What the command, run by itself, writes to a terminal."""
    ours, theirs = pty.openpty()
    subprocess.run([*SHOW, *map(str, arguments)], stdout=theirs, check=True, env={**os.environ, "PYTHONUTF8": "1"})
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 4096):
            written += piece
    except OSError:  # The end, as Linux tells it.
        pass
    os.close(ours)
    return written.decode().replace("\r\n", "\n")


def test_a_program_gets_the_text_exactly(shard: Path) -> None:
    for number, text in enumerate(TEXTS):
        done = subprocess.run([*SHOW, str(shard), str(number)], capture_output=True, check=True)
        assert done.stdout == text.encode()
        assert done.stderr == b""
    assert not list(shard.parent.glob("*.index.parquet")), "for one document none is made"


def test_a_terminal_is_not_given_control_characters(shard: Path) -> None:
    shown = in_terminal(shard, 2)
    assert shown == "bell \\x07 red \\x1b[31m tab\t back\\x0d\n and \\u202e é日本\n"
    assert in_terminal(shard, 1) == TEXTS[1]
    assert in_terminal(shard, 0, "--meta").splitlines()[1:] == ["first"]


def test_meta_is_a_line_of_json_before_the_text(shard: Path) -> None:
    output = run(shard, 1, "--meta").stdout_bytes
    meta, text = output.split(b"\n", 1)
    expected = {"shard": "00.jsonl", "number": 1, "subset": "Github", "meta": {"pile_set_name": "Github"}}
    assert json.loads(meta) == expected
    assert text == TEXTS[1].encode()
    bare = json.loads(run(shard, 7, "--meta").stdout.splitlines()[0])
    assert (bare["subset"], bare["meta"]) == ("(none)", {"url": "u"})


def test_json(shard: Path) -> None:
    output = run(shard, 2, "--json").stdout
    assert "\x1b" not in output
    assert output.isascii()
    assert output.count("\n") == 1
    meta = {"pile_set_name": "Github"}
    expected = {"shard": "00.jsonl", "number": 2, "subset": "Github", "meta": meta, "text": TEXTS[2]}
    assert json.loads(output) == expected


@pytest.mark.parametrize("option", ["--json", "--meta"])
def test_what_json_has_no_number_for_is_null(tmp_path: Path, option: str) -> None:
    meta = {"pile_set_name": "ArXiv", "score": float("nan"), "all": [float("inf"), 1.5, -float("inf")]}
    pq.write_table(pa.Table.from_pylist([{"text": "abc", "meta": meta}]), tmp_path / "a.parquet")

    def never(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    line = run(tmp_path / "a.parquet", 0, option).stdout.splitlines()[0]
    assert json.loads(line, parse_constant=never)["meta"] == {
        "pile_set_name": "ArXiv",
        "score": None,
        "all": [None, 1.5, None],
    }


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (5, "number 5 is no document: line 6 is blank"),
        (6, "number 6 is no document: line 7 is not JSON"),
        (8, "has no document 8: its 8 lines have the numbers 0 to 7"),
        (10**30, "its 8 lines have the numbers 0 to 7"),
    ],
)
@pytest.mark.parametrize("indexed", [False, True])
def test_what_is_no_document(shard: Path, number: int, why: str, indexed: bool) -> None:
    from pilekit.corpus import shard_of

    if indexed:
        build_index(shard_of(str(shard)), on_error="skip")
    with pytest.raises(PilekitError, match=why) as raised:
        run(shard, number)
    assert str(shard) in str(raised.value)


def test_wrong_usage_is_exit_2(shard: Path) -> None:
    for arguments in ((shard,), (shard, "x"), (shard, "1.5"), (shard, "--", "-1")):
        assert run(*arguments).exit_code == 2
    assert "counts from 0" in run("--help").output


def test_a_folder_and_a_missing_file(shard: Path) -> None:
    with pytest.raises(PilekitError, match="is a folder, not a shard; name a file in it"):
        run(shard.parent, 0)
    with pytest.raises(PilekitError, match="no such file"):
        run(shard.parent / "01.jsonl.zst", 0)


def test_an_index_is_used_where_one_fits(tmp_path: Path) -> None:
    from pilekit.corpus import shard_of

    path = tmp_path / "a.jsonl.zst"
    with ShardWriter(path, frame_bytes=10_000) as writer:
        writer.write_lines(some_lines(5000))
    index = build_index(shard_of(str(path)))
    text = json.loads(some_lines(5000)[4999])["text"]
    assert run(path, 4999).stdout == text
    # The first frame is damaged where no fingerprint shows it: with the index, the others are found without it.
    stored = bytearray(path.read_bytes())
    at = int(index.frames.offset[40]) + 500
    stored[at] ^= 1
    times = path.stat()
    path.write_bytes(stored)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a disk damages, not as a program edits
    assert run(path, 4999).stdout == text
    Path(index.path).unlink()
    with pytest.raises(PilekitError, match="frame 40 is damaged"):
        run(path, 4999)


def test_a_manifest_says_where_the_text_is(tmp_path: Path) -> None:
    path, about = tmp_path / "a.jsonl", tmp_path / "other.toml"
    path.write_bytes(b'{"content": "here", "kind": "web"}\n')
    about.write_text('name = "other"\ntext_field = "content"\nlabel_path = "kind"\n')
    assert json.loads(run(path, 0, "--json", "--manifest", about).stdout)["subset"] == "web"
    with pytest.raises(PilekitError, match='has no "text" field'):
        run(path, 0)


def test_standard_input(shard: Path) -> None:
    done = subprocess.run([*SHOW, "-", "4"], input=shard.read_bytes(), capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"no newline", b"")
    done = subprocess.run([*SHOW, "-", "70"], input=shard.read_bytes(), capture_output=True, check=False)
    assert b"(stdin): has no document 70: its 8 lines have the numbers 0 to 7" in done.stderr


def test_what_took_long_names_what_would_be_quick(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pilekit.corpus import shard_of

    monkeypatch.setattr(show, "SLOW_SECONDS", -1)
    told = run(shard, 0).stderr
    assert told.count("\n") == 1
    assert "`pilekit index` makes one" in told
    assert "reframe" in told
    assert run(shard, 0).stdout == "first"
    build_index(shard_of(str(shard)), on_error="skip")
    assert run(shard, 0).stderr == ""


def test_show_loads_nothing_heavy(shard: Path) -> None:
    check = (
        "import sys; from pilekit.cli.show import command; command([sys.argv[1], '0'], standalone_mode=False)\n"
        "print([name for name in ('torch', 'numba', 'transformers', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check, str(shard)], capture_output=True, check=True, text=True)
    assert done.stdout == "first[]\n"


def test_real_text(real_corpus: Path) -> None:
    path = real_corpus / "genuine_pile_sample.jsonl"
    for number, line in enumerate(path.read_bytes().splitlines()):
        assert run(path, number).stdout_bytes == json.loads(line)["text"].encode()
