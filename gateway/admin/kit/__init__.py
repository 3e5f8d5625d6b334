"""What any JSON API over HTTP needs, apart from what this one is about: see `README.md`."""
