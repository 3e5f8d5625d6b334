"""Safety hooks: what clients send and what models answer, checked and redacted by rules. Off unless configured."""
