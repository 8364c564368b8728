"""`pilekit doctor` names each missing, broken or old package, and says the rest all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pilekit.cli.doctor import machine, required_packages
from tests.cli.running import run, run_json
from tests.tokenize.making import byte_level_bpe, saved


def test_a_whole_installation_has_no_fault(tmp_path: Path) -> None:
    tokenizer = saved(byte_level_bpe(300), tmp_path / "tokenizer.json")
    said = run_json("doctor", "--tokenizer", tokenizer)
    assert set(said) == {"packages", "machine", "faults"}
    assert said["faults"] == []
    assert {"torch", "numpy", "zstandard", "pilekit"} <= set(said["packages"])
    assert set(said["machine"]) == {"cores", "memory", "disk", "torch build", "GPU", "tokenizer backend"}


def test_the_report_has_one_line_for_each_fact_and_fits_a_terminal() -> None:
    said = run_json("doctor")
    lines = run("doctor", exit_code=0).stdout.splitlines()
    assert lines[0] == "packages:"
    facts = {**said["packages"], **said["machine"]}
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [name.split()[0] for name in facts]
    assert max(len(line) for line in lines if "  disk " not in line) <= 80  # the current folder may have a long name
    assert "FAULT" not in "".join(lines)


def test_a_bad_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("{}")
    *_, backend = machine(str(tmp_path / "none.json"))
    assert backend.is_fault
    assert "is not a tokenizer.json" in backend.finding


BROKEN = """
import sys
sys.path.insert(0, {folder!r})
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
    assert said["machine"]["cores"]


def test_a_missing_package_is_named_with_the_remedy() -> None:
    missing, extra = required_packages(["nothing-like-this>=1", "nor-this; extra == 'x'"])
    assert missing == ("nothing-like-this", "missing; run `pip install .` again", True)
    assert extra == ("nor-this", "not installed; pip install '.[x]'", False)
