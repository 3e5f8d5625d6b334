"""Where an answer comes from: an engine, the response cache or the semantic cache."""
