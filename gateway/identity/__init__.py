"""Who is calling: API keys, tokens of identity providers, scopes, and how guessing is slowed."""

from gateway.identity.principal import Principal, Scope

__all__ = ["Principal", "Scope"]
