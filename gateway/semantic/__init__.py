"""The semantic cache on a turn's road, and the embedder that it shares with `/v1/embeddings` and the router."""
