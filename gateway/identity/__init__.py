"""Who is calling: API keys, tokens of identity providers, scopes, and how guessing is slowed."""

from gateway.directory.records import Scope
from gateway.identity.principal import Principal

__all__ = ["Principal", "Scope"]
