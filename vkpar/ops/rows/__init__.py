"""Operations on rows: norms, softmax, gates, rotary positions."""
