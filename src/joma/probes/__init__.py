"""Looking inside real models: every attention call, every weight, along training or at one moment."""
