"""The tests, whose processes and children use one thread each: small arrays gain nothing from more, which spin."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
