"""Which models can be fetched and from where, and the store on this machine that holds their files."""
