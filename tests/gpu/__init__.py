"""What only a GPU shows. All other tests compute on the CPU, where figures are the same on each machine.

    PILEKIT_TEST_GPU=1 python -m pytest tests/gpu

`process_group(1)` is a rank on the CPU in any case, so a test compares both devices.
"""

import pytest
import torch

from tests.older_torch import allow_older_torch

allow_older_torch()

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch finds no GPU on this machine, or PILEKIT_TEST_GPU=1 is not set"
)
