"""What to measure next, and with which budget: proposing, racing, polishing, shoot-outs, surveys, ablations."""
