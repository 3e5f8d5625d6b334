"""A checkpoint's files and the contents of its `config.json`. No torch: the adapter registry reads them too."""
