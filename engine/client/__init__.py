"""The gateway's side of an engine: text to token ids and back, one connection per engine. No torch."""
