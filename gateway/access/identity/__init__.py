"""Who is calling: API keys, tokens of identity providers, scopes, and how guessing is slowed."""

from gateway.access.identity.principal import Principal
from gateway.records.directory import Scope

__all__ = ["Principal", "Scope"]
