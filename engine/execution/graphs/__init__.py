"""Steps of decodes, recorded once per padded shape and replayed: the launches of a step as one (CUDA graphs)."""
