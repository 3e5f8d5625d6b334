"""How an adapter enters the registry: uploads, jobs and the worker that carries them out."""
