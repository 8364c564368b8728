"""Notebooks executed in kernels of their own that talk over Unix sockets, because no TCP port is theirs alone.

Over TCP the manager of a kernel asks for five free ports, closes them and starts the kernel, which binds them a second
later. Meanwhile any other process of a test may get one of them, and the kernel dies ("Kernel died before replying to
kernel_info", with "Address already in use" behind it). The sockets here stand in a folder of the kernel's own.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def execute(notebook: Any, folder: Path, seconds: int) -> None:
    """Run the cells of a notebook in `folder`; an error of a cell, or a cell that takes over `seconds`, is raised."""
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient

    with TemporaryDirectory(prefix="kernel-") as sockets:
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/socket")
        client = NotebookClient(notebook, manager, timeout=seconds, resources={"metadata": {"path": str(folder)}})
        client.execute(cleanup_kc=True)  # a manager that is given is not shut down otherwise
