"""Servers of other projects behind this gateway: their protocols as data, and one client for all of them."""
