"""Graphs: operations and collectives that are captured once and launched as often as wanted."""
