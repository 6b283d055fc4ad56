"""How ranks reach the staging slots."""
