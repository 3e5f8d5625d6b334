"""Where a turn goes: tier, route, replica; and what is learnt from where it went."""
