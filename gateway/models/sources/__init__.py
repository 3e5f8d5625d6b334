"""Where a model's bytes come from: the Hugging Face hub, Python packages, or any web server."""
