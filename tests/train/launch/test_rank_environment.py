"""The threads of a rank: the cores are shared, and a rank on a GPU needs one."""

from __future__ import annotations

import os

import pytest
import torch

from pilekit.train.launch.launch import rank_environment


def test_a_rank_on_a_gpu_has_one_thread_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    assert rank_environment(2)["OMP_NUM_THREADS"] == "4"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert rank_environment(2)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert rank_environment(2)["OMP_NUM_THREADS"] == "3"
