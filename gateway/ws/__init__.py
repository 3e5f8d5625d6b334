"""`/v1/responses` over WebSocket: sockets, and what makes uvicorn serve them well."""
