"""The response cache on a turn's road: what may be reused, under which key, and who follows whom."""
