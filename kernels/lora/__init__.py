"""Low-rank adapters (LoRA; Hu et al., 2021), many of them in one batch: `out[rows] += (x[rows] A^T) B` for each.

An adapter's weights lie in an *arena* of equal sectors, wherever there was room: `layout.py` says how. `reference.py`
reads them there, chunk by chunk, and is the specification. So do the built bodies (`bodies.py`), to which `tables.py`
says where everything is. Where none serves, adapters of a step that are laid out alike are copied side by side
(`slots.py`), so that one batched product serves all that have few tokens (`plan.py` says which). On the CPU the copies
are in fp32: products of few bf16 rows are ten times slower.
"""
