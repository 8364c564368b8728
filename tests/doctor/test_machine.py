"""`pilekit doctor` names each missing, broken or old package, and says the rest all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pilekit.doctor import machine, rates
from pilekit.doctor.machine import packages
from tests.cli.running import run, run_json
from tests.tokenize.making import byte_level_bpe, saved


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter measurements, in this process."""
    monkeypatch.setattr(rates, "SECONDS", 0.005)
    monkeypatch.setattr(rates, "DISK_BYTES", 1 << 20)


def test_a_whole_installation_has_no_fault_and_every_rate(tmp_path: Path) -> None:
    tokenizer = saved(byte_level_bpe(300), tmp_path / "tokenizer.json")
    disk = tmp_path / "disk"
    disk.mkdir()
    said = run_json("doctor", "--tokenizer", tokenizer, "--disk", disk)
    assert said["faults"] == []
    assert {"torch", "numpy", "zstandard", "pilekit"} <= set(said["packages"])
    assert set(said["machine"]) == {"cores", "memory", "disk", "torch build", "GPU", "tokenizer backend"}
    assert all(rate > 0 for rate in said["measured"].values())
    assert set(said["expected"]) == {*rates.ESTIMATES, *rates.TRAINING}
    assert not list(disk.iterdir())
    lines = run("doctor", "--tokenizer", tokenizer, "--disk", disk, exit_code=0).stdout
    assert max(map(len, lines.splitlines()[1:])) < 200
    assert "FAULT" not in lines


def test_without_a_tokenizer_commands_that_tokenize_have_no_rate(tmp_path: Path) -> None:
    said = run_json("doctor", "--disk", tmp_path)
    assert "tokenize" not in said["measured"]
    assert set(rates.ESTIMATES) - set(said["expected"]) == {
        name for name, one in rates.ESTIMATES.items() if one.of in ("tokenize", "encode")
    }


def test_a_bad_tokenizer_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("{}")
    *_, fact = machine.machine(tmp_path, str(tmp_path / "none.json"))
    assert fact.bad
    assert "is not a tokenizer.json" in fact.found
    with pytest.raises(machine.PilekitError, match="no such folder"):
        run("doctor", "--disk", tmp_path / "nowhere")


BROKEN = """
import sys
sys.path.insert(0, {folder!r})
from pilekit.doctor import rates
rates.SECONDS, rates.DISK_BYTES = 0.005, 1 << 20
sys.argv = ["pilekit", "doctor", "--json"]
from pilekit.cli.main import main
main()
"""


def test_broken_missing_and_old_packages_are_named_and_the_rest_is_said(tmp_path: Path) -> None:
    """torch without its library, fastokens panicking, orjson not there, numpy of an old version."""
    (tmp_path / "torch.py").write_text(
        'raise OSError("libcudart.so.12: cannot open\\x1b[31m shared object file\\nmore")'
    )
    (tmp_path / "fastokens.py").write_text('raise BaseException("a panic of Rust")')
    (tmp_path / "orjson.py").write_text("raise ModuleNotFoundError(\"No module named 'orjson'\")")
    (tmp_path / "numpy-1.0.dist-info").mkdir()
    (tmp_path / "numpy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")
    done = subprocess.run(
        [sys.executable, "-c", BROKEN.format(folder=str(tmp_path))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    assert {"torch", "fastokens", "orjson", "numpy", "torch build", "GPU", "tokenizer backend"} <= set(said["faults"])
    assert "cannot open\\x1b[31m shared object file" in said["packages"]["torch"]
    assert "more" not in said["packages"]["torch"]
    assert "a panic of Rust" in said["packages"]["fastokens"]
    assert ", cannot be imported: OSError: libcudart" in said["packages"]["torch"]  # after its version
    assert said["machine"]["tokenizer backend"].startswith("tokenizers alone, which is slow: fastokens fails: ")
    assert "1.0, but pilekit needs >=2" in said["packages"]["numpy"]
    assert "orjson" in said["measured"]["parse"]
    assert said["measured"]["disk write"] > 0
    assert said["machine"]["cores"]


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.metadata, "requires", lambda name: ["nothing-like-this>=1", "nor-this; extra == 'x'"])
    _, fact, *extras = packages()
    assert fact == ("nothing-like-this", "missing; run `pip install .` again", True)
    assert extras == [("nor-this", "not installed; pip install '.[x]'", False)]
