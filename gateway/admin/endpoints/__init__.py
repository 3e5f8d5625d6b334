"""The endpoints of `/admin/v1`, one module per resource."""
