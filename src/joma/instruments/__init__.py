"""The commands on real models as jobs: probe, neurons."""
