"""The admin API: `/admin/v1`, its OpenAPI description and a page to browse it. See docs/admin-api.md."""
