"""All settings with their defaults and checks, and how they change while a gateway runs."""
