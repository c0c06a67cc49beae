"""Where the checkpoints of a series lie: on the hub, in folders; each one given as a folder."""
