"""Tests of the response cache on the road of turns."""
