"""What turns cost, and the ledger of what was used."""
