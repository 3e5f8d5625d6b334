"""A checkpoint's files and what its `config.json` says. No torch: the adapter registry reads them too."""
