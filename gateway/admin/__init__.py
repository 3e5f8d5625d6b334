"""The admin API below `/admin/v1`, its description, a page to browse it, and the console. See docs/console.md."""
