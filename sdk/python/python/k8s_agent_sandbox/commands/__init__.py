"""Running commands."""
