"""lm-evaluation-harness, the real package, in an environment of its own: `loglikelihood_rolling` of documents.

    log_likelihoods(model_dir, ["a document", ...], batch_size=4)["log_likelihoods"]

This file is both sides: imported, it makes the environment and asks; run by the Python of that environment, it answers.
If the asking Python has the harness itself, as needed on a machine without a network, it answers itself. Where the
defaults of the harness and pilekit differ, pilekit's are used; these arguments change them back:

    special_tokens   the text of a special token in a document: "text", or "parse", which is the harness's default
    add_bos_token    False: no beginning-of-sequence token is scored; None, its default: as the tokenizer does
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ANSWER = "answer: "
"""How lines of answers begin: the harness prints other lines too."""
REQUIREMENTS = ["lm_eval[hf]==0.4.13", "torch==2.13.0", "transformers==5.23.0"]


def log_likelihoods(
    model_dir: Path,
    documents: Sequence[str],
    *,
    batch_size: int = 1,
    max_length: int | None = None,
    prefix_token_id: int | None = None,
    special_tokens: str = "text",
    add_bos_token: bool | None = False,
    dtype: str = "float32",
    warm_up: Sequence[str] = (),
    alone: bool = False,
) -> dict[str, Any]:
    """`log_likelihoods`, one a document in nats, and how they were made.

    `bits_per_byte` by the harness's own metric, `prefix_token_id` and `max_length` as used, `seconds` of scoring, and
    `memory`, the peak in bytes above the loaded model. `warm_up` is scored first, outside both. One process answers
    all calls, unless `alone` asks for a process of its own.
    """
    # Imported here, because the other side has neither the package nor its tests.
    from tests.benchmarks.peers import peer_environment

    # The peer gets the same versions as are installed here, so that the same torch computes on both sides.
    python = (
        Path(sys.executable)
        if find_spec("lm_eval")
        else peer_environment("lm-eval", REQUIREMENTS, ["--constraint", str(ROOT / "constraints.txt")], on_top=True)
    )
    task = {
        "model_dir": str(model_dir),
        "documents": list(documents),
        "warm_up": list(warm_up),
        "batch_size": batch_size,
        "max_length": max_length,
        "prefix_token_id": prefix_token_id,
        "special_tokens": special_tokens,
        "add_bos_token": add_bos_token,
        "dtype": dtype,
    }
    process = (_started if alone else _kept)(python)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{json.dumps(task)}\n")
    process.stdin.flush()
    (line,) = islice((line for line in process.stdout if line.startswith(ANSWER)), 1)
    if alone:
        process.communicate()
    answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
    return answer


def _started(python: Path) -> subprocess.Popen[str]:
    """A process that answers one line of JSON after the other until its standard input ends."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "LOGLEVEL": "ERROR"}
    pipe = subprocess.PIPE
    return subprocess.Popen([python, __file__], stdin=pipe, stdout=pipe, env=environment, text=True)


_kept = cache(_started)


def resident(name: str) -> int:
    """`VmRSS` or `VmHWM` of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def held_memory() -> int:
    """Bytes of tensors on the GPU, if there is one; else the resident bytes of this process."""
    import torch

    return torch.cuda.memory_allocated() if torch.cuda.is_available() else resident("VmRSS")


def peak_memory() -> int:
    """The peak of `held_memory` since `forget_peak`."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident("VmHWM")


def forget_peak() -> None:
    """Reset the peak: from here on, `VmHWM` and torch's peak on a GPU count from this call."""
    import torch

    Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _answer(task: dict[str, Any]) -> dict[str, Any]:
    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.api.metrics import bits_per_byte
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoTokenizer

    harness = HFLM(
        pretrained=task["model_dir"],
        tokenizer=(
            AutoTokenizer.from_pretrained(task["model_dir"], split_special_tokens=True)
            if task["special_tokens"] == "text"
            else None
        ),
        device="cuda" if torch.cuda.is_available() else "cpu",
        dtype=task["dtype"],
        batch_size=task["batch_size"],
        max_length=task["max_length"],
        prefix_token_id=task["prefix_token_id"],
        add_bos_token=task["add_bos_token"],
    )

    def score(documents: Sequence[str]) -> list[float]:
        requests = [
            Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=number)
            for number, text in enumerate(documents)
        ]
        with redirect_stderr(io.StringIO()):  # a progress bar per batch
            return harness.loglikelihood_rolling(requests, disable_tqdm=True)

    sum(float(parameter.detach().sum()) for parameter in harness.model.parameters())  # every page of the weights is in
    model = held_memory()
    score(task["warm_up"])
    forget_peak()
    begin, used = time.perf_counter(), time.process_time()
    scores = score(task["documents"])
    seconds, cpu_seconds, memory = time.perf_counter() - begin, time.process_time() - used, peak_memory() - model
    sizes = [len(text.encode()) for text in task["documents"]]
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "memory": memory,
        "log_likelihoods": scores,
        "bits_per_byte": bits_per_byte(list(zip(scores, sizes, strict=True))),
        "prefix_token_id": harness.prefix_token_id,
        "max_length": harness.max_length,
    }


if __name__ == "__main__":
    for question in sys.stdin:
        print(f"{ANSWER}{json.dumps(_answer(json.loads(question)))}", flush=True)
