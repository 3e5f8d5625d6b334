"""How personal data and secrets are recognised in text. Pure."""
