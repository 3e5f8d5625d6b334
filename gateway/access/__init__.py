"""Who is calling and what they may do: identity, the directory of tenants and keys, tickets."""
