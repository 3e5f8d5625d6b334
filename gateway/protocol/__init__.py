"""What travels between client and gateway, without any I/O: requests, events, codecs and the connection's session."""
