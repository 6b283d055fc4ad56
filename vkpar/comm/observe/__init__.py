"""For people: reports, profiles and traces."""
