"""Matrix products: the call, and the ways in which it is made."""
