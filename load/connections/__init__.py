"""How turns reach a server: HTTP and WebSocket connections, and a pool of them."""
