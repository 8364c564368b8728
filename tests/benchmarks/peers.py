"""The other tools that benchmarks run beside pilekit, each in its own virtual environment.

Peers need versions of dependencies that exclude each other, so none is installed beside pilekit. The environments live
in `.bench/` at the root of the repository and are kept: a second run installs nothing.

    python = peer_environment("polars", ["polars==2.1.0"])
    result = run_peer(python, "import polars, json; print(json.dumps(polars.__version__))")
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pilekit.artifacts.file_lock import locked

BENCH = Path(__file__).resolve().parents[2] / ".bench"
"""Where environments and generated data of benchmarks live; ignored by git."""


def peer_environment(
    name: str, requirements: Sequence[str], extra_pip_args: Sequence[str] = (), *, on_top: bool = False
) -> Path:
    """The Python of the virtual environment `.bench/<name>` that holds `requirements` (pinned, as pip spells them).

    It is made on first use, and again if `requirements` or `extra_pip_args` (e.g. `["--no-deps"]`) have changed. Raises
    `CalledProcessError` if pip fails. A half-made environment is not used. With `on_top`, what is installed for this
    Python, and the working tree's pilekit, are found there too: pip installs only what is missing.
    """
    with locked(BENCH / f"{name}.making"):  # two processes of the tests may ask for it at once
        folder = BENCH / name
        python = folder / "bin" / "python"
        below = (
            [str(BENCH.parent), f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"] if on_top else []
        )
        wanted = "\n".join([sys.version, *requirements, *extra_pip_args, *below])
        made = folder / "made-from"
        if python.exists() and made.exists() and made.read_text() == wanted:
            return python
        print(f"making {folder.relative_to(BENCH.parent)} with {', '.join(requirements)}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        own = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        (own / "below.pth").write_text("\n".join(below))
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", *extra_pip_args, *requirements], check=True, stdout=sys.stderr)
        made.write_text(wanted)
        return python


def run_peer(
    python: Path,
    script: str | Path,
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    cores: Sequence[int] = (),
) -> Any:
    """Run a script with `python`, on `cores` if any are named, and return its last line of output, decoded from JSON.

    `script` is the path of a file, or the source itself as a str. Its stderr is shown. An object without `cpu_seconds`
    gets them: those of the script and all its processes, with their start. Raises `CalledProcessError` if the script
    fails.
    """
    pin = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
    command = [*pin, str(python), *([str(script)] if isinstance(script, Path) else ["-c", script])]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        env={**with_bytecode(), **(environment or {})},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = json.loads(done.stdout.splitlines()[-1])
    if isinstance(result, dict):
        result.setdefault("cpu_seconds", after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return result


def with_bytecode() -> dict[str, str]:
    """The environment without a ban on bytecode: a process would parse pilekit's files, and no peer's, which pip
    compiles as it installs them.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
