"""Low-rank adapters (LoRA; Hu et al., 2021), many of them in one batch: `out[rows] += (x[rows] A^T) B` for each.

An adapter's weights lie in an *arena* of equal sectors, wherever there was room: `layout.py` says how. `reference.py`
is the specification, and runs where no library is built. The built bodies get `tables.py`'s description of a step's
adapters and rows; `ops.py` calls one or the other, as `plan.py` has planned the batch.
"""
