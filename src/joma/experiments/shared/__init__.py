"""What several experiments share: decoders, curves, recorded runs, trees."""
