"""The sources of answers: engines, response cache and semantic cache."""
