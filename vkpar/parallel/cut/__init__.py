"""How axes are cut, and arrays that lie over several ranks."""
