"""One thread per test process: small tensors gain nothing from more, and pytest-xdist runs several processes."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
