"""Files that tenants upload, and batches of requests that are answered when there is room for them."""
