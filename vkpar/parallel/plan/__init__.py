"""What a model is made of, and how it is best split over a rig."""
