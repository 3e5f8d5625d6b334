"""How many engines each pool has: what is read of the pools, which controller decides, and who starts and ends them."""
