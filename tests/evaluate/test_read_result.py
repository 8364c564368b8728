"""`read_result`: the figures that were found, or one line; never others."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pilekit.corpus import load_manifest
from pilekit.errors import PilekitError
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.compare import compare
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import read_result
from pilekit.evaluate.show.comparison_table import comparison_table
from pilekit.evaluate.show.table import result_table
from tests.evaluate.documents import write
from tests.evaluate.folders import record_file
from tests.process_groups import ROOT


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda out: (out / "result.json").unlink(), r"has no result\.json; score a model with --out"),
        (lambda out: (out / "result.json").write_text("{"), r"result\.json: is no result with records"),
        (lambda out: (out / "result.json").write_text('{"overall": {"documents": 3}, "protocol": {}}'), "is no result"),
        (lambda out: record_file(out).write_bytes(b""), "is of 50 documents, but 0 are recorded"),
        (lambda out: next((out / "records").glob("????*.json")).unlink(), r"\.json: is missing; copy the whole folder"),
        (lambda out: shutil.rmtree(out / "records"), r"\.json: is missing; copy the whole folder"),
    ],
)
def test_what_is_no_result(
    damage: Callable[[Path], None], words: str, whole: tuple[BitsPerByte, Path], tmp_path: Path
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    (out / "records" / "pilekit.json").unlink()
    damage(out)
    with pytest.raises(PilekitError, match=words):
        read_result(out)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda of: st.lists(of, max_size=2) | st.dictionaries(st.sampled_from(["name", "id", "path"]), of, max_size=2),
    max_leaves=4,
)


def places(told: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where in it the values are, those in others too."""
    items = told.items() if isinstance(told, dict) else enumerate(told) if isinstance(told, list) else ()
    for name, value in items:
        yield (*path, name)
        yield from places(value, (*path, name))


def with_value(told: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """A copy of it with another value there, or (Ellipsis) with none."""
    told = json.loads(json.dumps(told))
    of = told
    for name in path[:-1]:
        of = of[name]
    if value is ...:
        del of[path[-1]]
    else:
        of[path[-1]] = value
    return told


def answer(result: BitsPerByte, beside: BitsPerByte) -> Any:
    """The figures and what they say beside another's; that both can be shown is a part of it."""
    comparison = compare([result, beside], ["z1", "z5"])
    shown = Console(width=80, file=io.StringIO())
    shown.print(result_table(result, 80))
    shown.print(comparison_table(comparison, 80))
    return comparison.to_json(), result.overall, result.subsets, result.weighted


@pytest.fixture(scope="module")
def to_damage(whole: tuple[BitsPerByte, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = shutil.copytree(whole[1], tmp_path_factory.mktemp("to_damage") / "out")
    return out, answer(whole[0], whole[0])


@pytest.mark.parametrize("which", ["result", "key"])
@settings(max_examples=150)
@given(data=st.data())
def test_of_damaged_json_comes_the_same_answer_or_one_line(
    which: str, whole: tuple[BitsPerByte, Path], to_damage: tuple[Path, Any], data: st.DataObject
) -> None:
    out, expected = to_damage
    file = out / ("result.json" if which == "result" else f"records/{whole[0].protocol['records']}.json")
    content = file.read_text()
    told = json.loads(content)
    outer = data.draw(st.sampled_from(["protocol", *told]))
    path = data.draw(st.sampled_from([(outer,), *places(told[outer], (outer,))]))
    file.write_text(json.dumps(with_value(told, path, data.draw(st.just(...) | JSON))))
    try:
        assert answer(read_result(out), whole[0]) == expected
    except PilekitError as error:
        assert "\n" not in str(error)
    finally:
        file.write_text(content)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("overall", "documents"), "x"),
        (("overall",), None),
        (("training_copies",), 5),
        (("training_copies",), {"overall": 1, "subsets": {"ArXiv": "1"}, "shards": []}),
        (("protocol",), 7),
        (("protocol", "records"), None),
        (("protocol", "records"), "../records"),
        (("protocol", "skipped_lines"), "none"),
    ],
)
def test_a_damaged_result_is_no_result(
    path: tuple[str, ...], value: Any, whole: tuple[BitsPerByte, Path], tmp_path: Path
) -> None:
    file = shutil.copytree(whole[1], tmp_path / "out") / "result.json"
    file.write_text(json.dumps(with_value(json.loads(file.read_text()), path, value)))
    with pytest.raises(PilekitError, match=r"result\.json: is no result with records"):
        read_result(file.parent)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("protocol", "kind"), ...),
        (("protocol", "kind"), "masked"),
        (("protocol", "kind"), "other"),
        (("protocol", "prefix"), 3),
        (("protocol", "model"), None),
        (("protocol", "model", "path"), 5),
        (("protocol", "tokenizer", "fingerprint"), ...),
        (("protocol", "max_length"), 0),
        (("protocol", "dtype"), None),
        (("protocol", "data"), [{"size": 3}]),
        (("manifest", "subsets"), 5),
        (("manifest",), ...),
    ],
)
def test_a_protocol_of_another_shape_is_damaged(
    path: tuple[str, ...], value: Any, whole: tuple[BitsPerByte, Path], tmp_path: Path
) -> None:
    """Also without a sum, as of older versions; and the same command mends it."""
    out = shutil.copytree(whole[1], tmp_path / "out")
    [file] = (out / "records").glob(f"{whole[0].protocol['records']}.json")
    told = with_value(json.loads(file.read_text()), ("check",), ...)
    file.write_text(json.dumps(told))
    assert read_result(out).to_json() == whole[0].to_json()
    file.write_text(json.dumps(with_value(told, path, value)))
    with pytest.raises(PilekitError, match=r"\.json: is damaged \(.*\); copy it again, or score the model again"):
        read_result(out)


def test_an_edited_protocol_is_damaged_and_the_same_command_mends_it(
    whole: tuple[BitsPerByte, Path], model_dir: Path, corpus: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    [file] = (out / "records").glob(f"{whole[0].protocol['records']}.json")
    file.write_text(json.dumps(with_value(json.loads(file.read_text()), ("protocol", "max_length"), 64)))
    with pytest.raises(PilekitError, match=r"is damaged \(it is not what was written\)"):
        read_result(out)
    bits_per_byte(model_dir, corpus, out=out)
    assert read_result(out).to_json() == whole[0].to_json()


DIES_BEFORE_ITS_RESULT = """
import os, signal, sys
from pilekit.evaluate import bits_per_byte as module

module.write_result = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
module.bits_per_byte(sys.argv[1], sys.argv[2], out=sys.argv[3], paper=sys.argv[4] == "paper")
"""


@pytest.mark.parametrize("paper", [False, True])
def test_a_run_that_did_not_end_changes_no_variant(
    paper: bool, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paper's variant and the other are of the same records; the folder holds that of the last whole run."""
    monkeypatch.chdir(ROOT)
    labels = [subset.name for subset in load_manifest().subsets]
    shard = write(tmp_path / "val.jsonl", [(label, f"text of {label}") for label in labels * 2])
    first = bits_per_byte(model_dir, shard, out=tmp_path / "out", paper=paper)
    other = bits_per_byte(model_dir, shard, paper=not paper)
    assert first.overall.bpb != other.overall.bpb
    command = [sys.executable, "-c", DIES_BEFORE_ITS_RESULT, model_dir, shard, tmp_path / "out"]
    died = subprocess.run([*command, "bytes" if paper else "paper"], capture_output=True, timeout=120, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert read_result(tmp_path / "out").to_json() == first.to_json()
    bits_per_byte(model_dir, shard, out=tmp_path / "out", paper=not paper)
    again = read_result(tmp_path / "out")
    assert (again.overall, again.subsets, again.weighted) == (other.overall, other.subsets, other.weighted)


@pytest.mark.parametrize(("path", "value"), [(("protocol", "paper"), True), (("overall", "bpb"), 1.25)])
def test_a_result_that_is_not_of_its_records(
    path: tuple[str, ...], value: Any, whole: tuple[BitsPerByte, Path], tmp_path: Path
) -> None:
    file = shutil.copytree(whole[1], tmp_path / "out") / "result.json"
    file.write_text(json.dumps(with_value(json.loads(file.read_text()), path, value)))
    with pytest.raises(PilekitError, match=r"result\.json: is not what was written: its overall bpb is not that of"):
        read_result(file.parent)
