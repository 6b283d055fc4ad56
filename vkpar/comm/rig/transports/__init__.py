"""How ranks reach the staging memory."""
