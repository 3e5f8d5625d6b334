"""Who and what there is: tenants, users, API keys, prices and routes in Redis, and the audit log of their changes."""
