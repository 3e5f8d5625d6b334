"""Plain data that configuration, directory and limits share: tenants, keys, prices, quotas. Pure."""
