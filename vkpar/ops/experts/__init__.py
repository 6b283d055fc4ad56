"""What a mixture of experts computes on one device: who is taken, products by the matrices of these, and their sum."""
