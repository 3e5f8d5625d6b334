"""What any admin API needs: typed endpoints, dispatch, OpenAPI, conditional requests, cursors."""
