"""Whether the members of a series are what their names say: identity by tensor, and continuity."""
